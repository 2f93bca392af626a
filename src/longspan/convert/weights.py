"""Tensors and settings from files that other programs wrote."""

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
    """Return the tensors by name in a .safetensors file or in a state dict that `torch.save` wrote, on the CPU.

    Raises:
        UserError: the file is damaged, holds anything but tensors by name, or objects that only their own code could
            open, which is not run.
    """
    if path.suffix == ".safetensors":
        try:
            return dict(load_file(path))
        except SafetensorError as error:
            raise UserError(f"{str(path)!r} is damaged ({error}): get the file again.") from None
    try:
        with warnings.catch_warnings():
            # Old files hold tensors in forms that torch reads, and warns about.
            warnings.simplefilter("ignore")
            found = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        refused = re.search(r"GLOBAL ([\w.]+)", str(error))
        if refused:
            raise UserError(
                f"{str(path)!r} holds objects ({refused[1]}) beside tensors, which only code could open, and none was "
                "run: load it where it was made, and save the weights alone with "
                "`torch.save(model.state_dict(), 'pytorch_model.bin')`."
            ) from None
        if "TorchScript" in str(error):
            raise UserError(
                f"{str(path)!r} holds a TorchScript program, which is not run: load it where it was made, and save the "
                "weights alone with `torch.save(model.state_dict(), 'pytorch_model.bin')`."
            ) from None
        # What torch says then is about its own code, or advises to run whatever is in the file.
        raise UserError(f"{str(path)!r} is damaged or not a file of torch.save: get the file again.") from None
    if not isinstance(found, dict) or not found or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise UserError(
            f"{str(path)!r} holds no tensors by name: expected what `torch.save(model.state_dict(), PATH)` writes."
        )
    return {str(name): tensor for name, tensor in found.items()}


def load_settings(path: Path) -> dict[str, Any]:
    """Return the JSON object in `path`. Raises UserError if there is none in it."""
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        settings = None
    if not isinstance(settings, dict):
        raise UserError(f"{str(path)!r} is damaged: expected a JSON object.")
    return settings


class Source:
    """Weights by published name, each asked for with the shape that it must have."""

    def __init__(self, tensors: Mapping[str, Tensor], path: Path) -> None:
        self.path = path
        self.tensors = dict(tensors)
        self.left = set(tensors)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def shape(self, name: str, dimensions: int) -> tuple[int, ...]:
        """Return the shape of a weight from which others' follow."""
        found = tuple(self._find(name).shape)
        if len(found) != dimensions:
            raise UserError(f"{name} in {str(self.path)!r} has shape {found}: expected {dimensions} dimensions.")
        return found

    def take(self, name: str, *shape: int) -> Tensor:
        tensor = self._find(name)
        if tensor.shape != shape:
            raise UserError(
                f"{name} in {str(self.path)!r} has shape {tuple(tensor.shape)}, which does not fit the other weights: "
                f"expected {shape}."
            )
        return tensor.float()

    def count(self, pattern: str) -> int:
        """Return how many weights there are whose names are `pattern` with 0, 1 and so on for its {}."""
        return next(number for number in itertools.count() if pattern.format(number) not in self.tensors)

    def _find(self, name: str) -> Tensor:
        if name not in self.tensors:
            raise UserError(
                f"{name} is missing in {str(self.path)!r}: expected all weights of the model, with its language "
                "modelling head."
            )
        self.left.discard(name)
        return self.tensors[name]
