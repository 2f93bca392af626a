"""Pickled dictionaries, lists and strings, opened without running anything that the file asks for.

A pickle is a program: it names functions and has them called. Here it can name only the containers below. Objects of
the libraries that `TransfoXLTokenizer` keeps beside its vocabulary become empty stand-ins; any other name is refused.
"""

import pickle
import zipfile
from pathlib import Path
from typing import Any

from longspan.errors import UserError

# Built-in types only: a file may set attributes on what it names, which these do not let it.
_CONTAINERS = {
    "collections.OrderedDict": dict,
    "collections.Counter": dict,
    "builtins.set": set,
    "builtins.frozenset": frozenset,
    "__builtin__.set": set,
    "__builtin__.frozenset": frozenset,
}

_PASSED_OVER = ("re", "sacremoses", "tokenizers", "transformers")

#: What a file of `torch.save` from before PyTorch 1.6 starts with.
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C


class _Nothing:
    """Stands where an object of another library was; what it was made from is dropped."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "_Nothing":
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class _Refused(Exception):
    """What a file asked for and does not get."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in _CONTAINERS:
            return _CONTAINERS[f"{module}.{name}"]
        if module.partition(".")[0] in _PASSED_OVER:
            return _Nothing
        raise _Refused(f"{module}.{name}")


def load_containers(path: Path) -> Any:
    """Return what is pickled in `path`, which may also be a file of `torch.save` without tensors, of any age.

    Raises:
        UserError: the file is damaged, or asks for anything but plain containers; nothing of it was run.
    """
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                (name,) = (name for name in archive.namelist() if name.endswith("/data.pkl"))
                with archive.open(name) as file:
                    return _load(file)
        with path.open("rb") as file:
            value = _load(file)
            if value == _TORCH_MAGIC:
                # Then come the version of the format, the machine's byte order, and what was saved.
                value = [_load(file) for _ in range(3)][-1]
            return value
    except _Refused as refused:
        raise UserError(
            f"{str(path)!r} asks for {refused}, but only dictionaries, lists and strings are read from pickles, and "
            "nothing of it was run: write the vocabulary to vocab.txt instead, one token per line in the order of ids."
        ) from None
    except OSError:
        raise
    # A damaged pickle raises nearly anything.
    except Exception as error:
        problem = str(error) or type(error).__name__
        raise UserError(f"{str(path)!r} is damaged or no pickle ({problem}): get the file again.") from None


def _load(file: Any) -> Any:
    return _Unpickler(file, encoding="utf-8").load()
