"""Loading pickled dictionaries, lists and strings, without running anything that the file asks for.

A pickle is a program: it names functions to be called. Here it can name only the containers below. Objects of the
libraries that `TransfoXLTokenizer` saves with its vocabulary become empty placeholders; any other name is refused.
"""

import pickle
import zipfile
from pathlib import Path
from typing import Any

from longspan.errors import UserError

# Built-in types only: a file may try to set attributes on what it names, and these do not allow that.
_CONTAINERS = {
    "collections.OrderedDict": dict,
    "collections.Counter": dict,
    "builtins.set": set,
    "builtins.frozenset": frozenset,
    "__builtin__.set": set,
    "__builtin__.frozenset": frozenset,
}

_REPLACED = ("re", "sacremoses", "tokenizers", "transformers")

#: The beginning of a file of `torch.save` before PyTorch 1.6.
_TORCH_MAGIC = 0x1950A86A20F9469CFC6C


class _Nothing:
    """A placeholder for an object of another library; its contents are dropped."""

    def __new__(cls, *args: Any, **kwargs: Any) -> "_Nothing":
        return super().__new__(cls)

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        pass

    def __setstate__(self, state: Any) -> None:
        pass


class _Refused(Exception):
    """The name that a file asked for, which is refused."""


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if f"{module}.{name}" in _CONTAINERS:
            return _CONTAINERS[f"{module}.{name}"]
        if module.partition(".")[0] in _REPLACED:
            return _Nothing
        raise _Refused(f"{module}.{name}")


def load_containers(path: Path) -> Any:
    """Return the contents of a pickle, or of a file of `torch.save` without tensors from any version of PyTorch.

    Raises:
        UserError: the file is damaged, or asks for anything but plain containers; nothing was run.
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
                # The version of the format, the machine's byte order, and the saved object follow.
                value = [_load(file) for _ in range(3)][-1]
            return value
    except _Refused as refused:
        raise UserError(
            f"expected only dictionaries, lists and strings in the pickle {str(path)!r}, got {refused}, which was not "
            "run; write the vocabulary to vocab.txt instead, one token per line in the order of ids."
        ) from None
    except OSError:
        raise
    # A damaged pickle raises nearly anything.
    except Exception as error:
        problem = str(error) or type(error).__name__
        raise UserError(f"{str(path)!r} is damaged or not a pickle ({problem}); get the file again.") from None


def _load(file: Any) -> Any:
    return _Unpickler(file, encoding="utf-8").load()
