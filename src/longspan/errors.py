"""The exception for mistakes that a user can fix, and helpers that keep its messages consistent."""

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """A mistake that the user can fix: one sentence, "expected X, got Y; do Z".

    The command line prints only the message and exits with code 2; library callers can catch it as a `ValueError`.
    """


def check_choice(what: str, value: str, known: Iterable[str]) -> None:
    """Raise UserError unless `value` is one of `known`; `what` says what they name."""
    known = list(known)
    if value not in known:
        raise UserError(f"there is no {what} {value!r}; {suggestion(value, known)}")


def suggestion(word: str, known: Iterable[str]) -> str:
    """Return `did you mean 'x'?` for the known name nearest to `word`, or list all known names."""
    names = sorted(known)
    near = difflib.get_close_matches(word, names, n=1, cutoff=0.6)
    return f"did you mean {near[0]!r}?" if near else f"known names are {', '.join(names) or '(none)'}."
