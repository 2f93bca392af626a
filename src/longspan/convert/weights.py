"""Loading tensors and settings from files of other programs."""

import itertools
import json
import re
import warnings
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
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused:
            raise UserError(
                f"expected only tensors in {str(path)!r}, got objects ({refused[1]}) that need code, and none was run; "
                "load the file where it was written, and save only the weights with "
                "`torch.save(model.state_dict(), 'pytorch_model.bin')`."
            ) from None
        if "TorchScript" in str(error):
            raise UserError(
                f"expected only tensors in {str(path)!r}, got a TorchScript program, which is not run; load the file "
                "where it was written, and save only the weights with "
                "`torch.save(model.state_dict(), 'pytorch_model.bin')`."
            ) from None
        # The message of torch is about its own code, or suggests running whatever is in the file.
        raise UserError(f"{str(path)!r} is damaged or not a file of torch.save; get the file again.") from None
    if not isinstance(found, dict) or not found or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise UserError(
            f"expected tensors by name in {str(path)!r}, got something else; save them with "
            "`torch.save(model.state_dict(), PATH)`."
        )
    return {str(name): tensor for name, tensor in found.items()}


def load_settings(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`. Raises UserError if it does not contain one."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise UserError(f"expected a JSON object in {str(path)!r}, got a damaged file; get the file again.")
    return settings


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
        """Return how many weights have the names `pattern` with 0, 1, ... in place of {}."""
        return next(number for number in itertools.count() if pattern.format(number) not in self.tensors)

    def _find(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise UserError(
                f"expected all weights of the model and its language modelling head in {str(self.path)!r}, got none "
                f"for {name}; use another file."
            )
        self.left.discard(name)
        return self.tensors[name]
