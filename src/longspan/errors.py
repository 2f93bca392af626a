"""The one exception for mistakes a user can mend, and the wording helpers that keep such messages alike."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake the user can mend: one sentence saying what was expected, what came, and what to do.

    The command line prints the message alone and exits with code 2; library callers catch it as a `ValueError`.
    """


def check_choice(what: str, value: str, known: Iterable[str]) -> None:
    """Raise UserError unless `value` is one of `known`; `what` says what the names are names of."""
    known = list(known)
    if value not in known:
        raise UserError(f"there is no {what} {value!r}; {suggestion(value, known)}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?` for the known name nearest to `word`, or the list of known names."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"known names are {', '.join(names) or '(none)'}."
