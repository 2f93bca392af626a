"""Loading tensors and vocabularies from files of other programs."""

import itertools
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from longspan.errors import UserError


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Return the tensors by name in a .safetensors file or in a state dict from `torch.save`, on the CPU.

    Raises:
        UserError: the file is damaged, contains anything but tensors by name, or contains objects that only their own
            code could load, which is not run.
    """
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except SafetensorError as error:
            raise UserError(f"{str(path)!r} is damaged ({error}); get the file again.") from None
    try:
        with warnings.catch_warnings():
            # torch reads the formats of old files, but warns about them.
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        refused = "a TorchScript program, which is not run" if "TorchScript" in str(error) else ""
        if named := re.search(r"GLOBAL ([\w.]+)", str(error)):
            refused = f"objects ({named[1]}) that need code, and none was run"
        if refused:
            raise UserError(
                f"expected only tensors in {str(path)!r}, got {refused}; load the file where it was written, and save "
                "only the weights with `torch.save(model.state_dict(), 'pytorch_model.bin')`."
            ) from None
        # The message of torch is about its own code, or suggests running whatever is in the file.
        raise UserError(f"{str(path)!r} is damaged or not a file of torch.save; get the file again.") from None
    if not isinstance(found, dict) or not found or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise UserError(
            f"expected tensors by name in {str(path)!r}, got something else; save them with "
            "`torch.save(model.state_dict(), PATH)`."
        )
    return {str(name): tensor for name, tensor in found.items()}


class Source:
    """Weights by published name, each requested with the shape it must have."""

    def __init__(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self.path = path
        self.tensors = dict(tensors)
        self.left = set(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Return the shape of a weight, from which the shapes of others follow."""
        found = tuple(self._find(name).shape)
        if len(found) != dimensions:
            raise UserError(
                f"expected {dimensions} dimensions of {name} in {str(self.path)!r}, got shape {found}; use another "
                "file."
            )
        return found

    def take(self, name: str, *shape: int) -> Tensor:
        tensor = self._find(name)
        if tensor.shape != shape:
            raise UserError(
                f"expected shape {shape} of {name} in {str(self.path)!r}, according to the other weights, got "
                f"{tuple(tensor.shape)}; use another file."
            )
        return tensor.float()

    def count(self, pattern: str) -> int:
        """Number of weights with the names `pattern` with 0, 1, ... in place of {}."""
        return next(number for number in itertools.count() if pattern.format(number) not in self.tensors)

    def _find(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise UserError(
                f"expected all weights of the model and its language modelling head in {str(self.path)!r}, got none "
                f"for {name}; use another file."
            )
        self.left.discard(name)
        return self.tensors[name]


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
