"""The exception for mistakes that a user can fix, and helpers that keep its messages consistent."""

import difflib
import errno
import sys
from collections.abc import Collection, Iterable, Mapping

FEW = 12
"""The most names that a message lists in full."""


class UserError(ValueError):
    """A mistake that the user can fix: one sentence, "expected X, got Y; do Z".

    The command line prints only the message and exits with code 2; library callers can catch it as a `ValueError`.
    """


def check_choice(what: str, value: str, known: Iterable[str]) -> None:
    """Raise UserError unless `value` is one of `known`; `what` says what they name."""
    known = list(known)
    if value not in known:
        raise UserError(f"there is no {what} {value!r}; {suggestion(value, known)}")


def suggestion(word: str, known: Iterable[str], *, meant: Mapping[str, str] | None = None, see: str = "") -> str:
    """Return `did you mean 'x'?` for the known name nearest to `word`; else a few names, all of them if they are few.

    Args:
        word: The name that was given.
        known: The names there are.
        meant: Words that others use, each with the known name that means the same.
        see: Command that lists all names, such as "`longspan list`".
    """
    names = sorted(set(known))
    near = nearest(word, names, meant)
    return f"did you mean {near!r}?" if near else listing(word, names, see)


def listing(word: str, known: Iterable[str], see: str = "") -> str:
    """Return the sentence that names all of a few known names, or the three of many that are nearest to `word`."""
    names = sorted(set(known))
    if len(names) <= FEW:
        return f"known names are {', '.join(names) or '(none)'}."
    some = ", ".join(difflib.get_close_matches(word, names, n=3, cutoff=0))
    return f"the nearest of {len(names)} names are {some}{f'; {see} lists all' if see else ''}."


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Return `did you mean 'x'?`, or nothing if no known name is similar."""
    hint = suggestion(word, known)
    return hint if hint.startswith("did") else ""


def nearest(word: str, known: Iterable[str], meant: Mapping[str, str] | None = None) -> str | None:
    """Return the known name that `word` resembles or means, whatever its case, hyphens and underscores, or None."""
    names = {_plain(name): name for name in known}
    others = {_plain(other): name for other, name in (meant or {}).items() if _plain(name) in names}
    plain = _plain(word)
    if plain in others and plain not in names:
        return others[plain]
    for found, cutoff in ((names, 0.6), (others, 0.8)):
        if near := difflib.get_close_matches(plain, found, n=1, cutoff=cutoff):
            return found[near[0]]
    return None


def _plain(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "")


#: Extra that installs a package which longspan does without, by the name it is imported by.
EXTRAS = {
    "PIL": "images",
    "bm25s": "baselines",
    "fastapi": "serve",
    "fla": "gpu",
    "lxml": "html",
    "matplotlib": "figures",
    "model2vec": "baselines",
    "networkx": "graphs",
    "olefile": "documents",
    "onnx": "export",
    "onnxruntime": "export",
    "onnxscript": "export",
    "peft": "peft",
    "pypdfium2": "documents",
    "python_calamine": "documents",
    "ray": "ray",
    "rouge_score": "summarisation",
    "sacrebleu": "translation",
    "scipy": "baselines",
    "sentence_transformers": "sentence-transformers",
    "sklearn": "baselines",
    "soundfile": "audio",
    "soxr": "audio",
    "striprtf": "documents",
    "uvicorn": "serve",
    "xlsxwriter": "excel",
}


def missing_package(module: str, needed_by: str, install: str = "") -> str:
    """Message about a package that is not installed, without its full stop; see `longspan.machine.imports.require`."""
    wanted = f'"longspan[{EXTRAS[module]}]"' if module in EXTRAS else install or module
    return f"{needed_by} needs the package {module!r}, which is not installed: `pip install {wanted}`"


def first_line(error: BaseException) -> str:
    """First line of an error's message, without its full stop; the name of its class where it has none."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".:")


def sentence_of(error: BaseException | None) -> str | None:
    """Return the message for an error that the user can fix; None if it, and what caused it, is a bug of ours."""
    while error is not None:
        if isinstance(error, UserError):
            return str(error)
        if package := _package_of(error):
            return f"{missing_package(package, 'this')}."
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return f"no space left on the device{f' for {error.filename}' if error.filename else ''}; free some."
        if isinstance(error, OSError) and error.strerror:
            # A folder that may not be written, a link to itself, a name too long, a folder in place of a file, ...
            return f"{error.strerror.lower()}: {error.filename or error}."
        if isinstance(error, MemoryError) or "DefaultCPUAllocator" in str(error):
            return "there is not enough memory for this model and these data; use smaller ones, or a larger machine."
        # Such as a data set's builder, which wraps what its generator raises.
        error = error.__cause__
    return None


def _package_of(error: BaseException) -> str | None:
    """Package from elsewhere that is not installed, if that is why an import failed."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    return None if package in ("longspan", *sys.modules, *sys.stdlib_module_names) else package or None
