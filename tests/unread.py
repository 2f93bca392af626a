"""A device whose values cannot be read stands for a GPU: what reads one would wait for all that the GPU has to do."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("meta")


class _Copies(TorchDispatchMode):
    """Refuses copies to the device during which the host waits; a single number is given with a launch."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        given, made = ([x for x in tree_leaves(each) if isinstance(x, Tensor)] for each in ((args, kwargs), found))
        asynchronous = kwargs.get("non_blocking") or (func._schema.name == "aten::copy_" and args[2:] == (True,))
        if any(x.device == DEVICE for x in made) and any(x.device.type == "cpu" and x.ndim for x in given):
            assert asynchronous, f"the host waits for a copy to the device: {func}"
        return found


class _Literals(TorchFunctionMode):
    """Refuses tensors of the device that are made from numbers of the host."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = func(*args, **kwargs)
        if func in (torch.tensor, torch.as_tensor, Tensor.new_tensor) and found.device == DEVICE:
            assert isinstance(args[0], Tensor), f"numbers of the host are copied to the device: {args}"
        return found


@contextlib.contextmanager
def unread() -> Iterator[None]:
    """Tensors on DEVICE are computed with, without values, and an error is raised where one would be read."""
    enabled, autocast = torch.is_autocast_enabled, torch.autocast
    with pytest.MonkeyPatch.context() as patch, _Copies(), _Literals():
        # A GPU has autocast, this device does not.
        patch.setattr(torch, "is_autocast_enabled", lambda *kind: enabled(*({"meta": "cpu"}.get(x, x) for x in kind)))
        patch.setattr(torch, "autocast", lambda kind, **more: autocast("cpu" if kind == "meta" else kind, **more))
        yield
