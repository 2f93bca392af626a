"""Importing classes that files and users name by dotted path, only with consent: `load_class`.

A run folder or recipe may come from a stranger, and importing a module runs it. So a dotted path such as
"mypackage.mixers.Mine" is imported only if
    the user allows it: `--allow-import mypackage` on the command line, `allow_imports=("mypackage",)` or `with
    allow("mypackage")` in Python, each for the package or module of that name and everything below it; or
    its module has already been imported.
Even looking for a module imports the packages around it, so without consent nothing is looked for.

With consent, a package that is not installed is also looked for in the current directory. The console script never
imports anything else from there: a folder from a stranger may contain a `torch.py`.
"""

import contextlib
import functools
import importlib
import importlib.util
import keyword
import pkgutil
import sys
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, TypeVar

from longspan.errors import UserError, missing_package, suggestion

T = TypeVar("T")

_allowed: ContextVar[tuple[str, ...]] = ContextVar("longspan_allowed_imports", default=())
_source: ContextVar[str] = ContextVar("longspan_source_of_names", default="")

#: Paths loaded in this process. A package may import a class lazily and not keep it in its namespace, but with consent
#: given once, it counts as imported.
_loaded: set[str] = set()


@functools.cache
def modules_in(*folders: str) -> tuple[str, ...]:
    """Return the names of the modules in folders, sorted, without those that begin with "_".

    Each folder is read once per process: building a model asks for such names hundreds of times.
    """
    return tuple(sorted(one.name for one in pkgutil.iter_modules(folders) if not one.name.startswith("_")))


@contextlib.contextmanager
def allow(*names: str) -> Iterator[None]:
    """Consent, within the `with` block and this thread, to importing these packages or modules.

    It applies to everything that loads a model there, such as `transformers.AutoModel.from_pretrained`.

    Args:
        names: packages or modules, such as "mypackage" or "mypackage.mixers", including everything below them.

    Raises:
        UserError: a name is not a valid module name.
    """
    token = _allowed.set(tuple(dict.fromkeys((*_allowed.get(), *_checked(names)))))
    try:
        yield
    finally:
        _allowed.reset(token)


@contextlib.contextmanager
def named_in(source: Path | str | None) -> Iterator[None]:
    """Let errors within the `with` block say that the path is named in `source`, unless an outer block does."""
    token = _source.set(_source.get() or str(source or ""))
    try:
        yield
    finally:
        _source.reset(token)


def consent_flags() -> list[str]:
    """Return the arguments that pass this process's consent on to a `longspan` command that it starts.

    They cover the names given to `allow`, and the modules of all classes loaded here, however they were imported.
    """
    names = dict.fromkeys((*_allowed.get(), *(path.rpartition(".")[0] for path in sorted(_loaded))))
    return [argument for name in names for argument in ("--allow-import", name)]


def is_installed(module: str) -> bool:
    """Whether a package can be imported, by the name it is imported by, without dots; nothing is imported."""
    found = importlib.util.find_spec(module)
    # A folder of that name in the current directory is no package.
    return found is not None and found.origin is not None


def require(module: str, needed_by: str, *, install: str = "", instead: str = "") -> None:
    """Raise UserError unless a package that longspan itself does without is installed; nothing is imported.

    Args:
        module: the name it is imported by, without dots.
        needed_by: what cannot work without it, to begin the message.
        install: what pip calls it, if it is in no extra of longspan and that is not `module`.
        instead: what can be done without it, to end the message, such as "leave it out".
    """
    if not is_installed(module):
        raise UserError(f"{missing_package(module, needed_by, install)}{instead and f', or {instead}'}.")


def load_class(path: str, base: type[T], *, what: str, allow_imports: Iterable[str] = ()) -> type[T]:
    """Return the class at a dotted path, which must be derived from `base`.

    Args:
        path: "package.module.Class".
        base: what the class must be a subclass of.
        what: what the class is for, in messages: "mixer".
        allow_imports: packages or modules that may be imported, in addition to those of `allow`.

    Raises:
        UserError: `path` is not a dotted path, there is no consent to import it, it does not exist, or it is not a
            concrete class derived from `base`.
    """
    if not isinstance(path, str) or not _is_dotted(path) or "." not in path:
        raise UserError(
            f"expected the {what} to be a dotted path such as 'mypackage.module.Class', got {path!a}{_where()}; "
            "correct it."
        )
    module_name, _, name = path.rpartition(".")
    consent = path in _loaded or any(
        f"{module_name}.".startswith(f"{allowed}.") or allowed == path
        for allowed in (*_allowed.get(), *_checked(allow_imports))
    )
    found = _import(path, what) if consent else _imported(path, what)
    if found is None:
        offered = vars(sys.modules[module_name]).items()
        near = [key for key, value in offered if isinstance(value, type) and issubclass(value, base)]
        raise UserError(
            f"expected the {what} {name!a}{_where()} in {module_name!a}, got none; {suggestion(name, near)}"
        )
    if not isinstance(found, type) or not issubclass(found, base):
        raise UserError(
            f"expected the {what} {path!a}{_where()} to be a class derived from {base.__module__}.{base.__qualname__}, "
            f"got {'another class' if isinstance(found, type) else f'a {type(found).__name__}'}; name another one."
        )
    if missing := getattr(found, "__abstractmethods__", None):
        raise UserError(
            f"expected the {what} {path!a}{_where()} to be complete, got a class without "
            f"{', '.join(sorted(missing))}; define what is missing, or name another one."
        )
    _loaded.add(path)
    return found


def _imported(path: str, what: str) -> Any:
    """Value at `path` in an imported module, without running anything; None if there is nothing."""
    module_name, _, name = path.rpartition(".")
    module = sys.modules.get(module_name)
    # A module's own `__getattr__` may import more.
    if module is not None and (name in vars(module) or "__getattr__" not in vars(module)):
        return vars(module).get(name)
    package = path.partition(".")[0]
    raise UserError(
        f"the {what} {path!a}{_where()} is code that has not been imported, and importing it runs it; if you trust it, "
        f"allow it with --allow-import {package}, or in Python with allow_imports=({package!r},) or by importing "
        f"{package} first."
    )


def _import(path: str, what: str) -> Any:
    """Import the module of `path`; return what is at `path`, or None."""
    module_name, _, name = path.rpartition(".")
    package = path.partition(".")[0]
    _find_in_current_directory(package)
    try:
        return getattr(importlib.import_module(module_name), name, None)
    except (ImportError, SyntaxError) as error:
        raise UserError(
            f"expected to import the {what} {path!a}{_where()}, got an error ({error}); check the path, and that "
            f"{package} is installed, in the current directory, or in a folder in PYTHONPATH."
        ) from error


def _find_in_current_directory(package: str) -> None:
    """Let a package that is found nowhere else be imported from the current directory, with its neighbours."""
    if package in sys.modules or importlib.util.find_spec(package) is not None:
        return
    here = str(Path.cwd())
    if PathFinder.find_spec(package, [here]) is not None:
        # Last, so that it hides nothing; and permanently, as modules may import their neighbours later.
        sys.path.append(here)


def _checked(names: Iterable[str]) -> tuple[str, ...]:
    if isinstance(names, str):
        raise UserError(f"expected allow_imports to be several names, got the text {names!a}; write ({names!r},).")
    for name in (names := tuple(names)):
        if not isinstance(name, str) or not _is_dotted(name):
            raise UserError(
                f"expected the name of a package or module to allow, such as 'mypackage', got {name!a}; correct it."
            )
    return names


def _is_dotted(path: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in path.split("."))


def _where() -> str:
    return f" (named in {_source.get()!r})" if _source.get() else ""
