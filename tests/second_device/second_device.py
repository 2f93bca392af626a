"""A device of its own kind for PyTorch, compiled on import, which is then the accelerator of this process."""

import contextlib
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.cpp_extension import load

NAME = "second"


def on_host(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes on the CPU, and leaves results where its tensors were."""

    def call(*arguments: Any) -> Any:
        tensors = [x for x in tree_leaves(arguments) if isinstance(x, torch.Tensor)]
        found = function(*tree_map(lambda x: x.cpu() if isinstance(x, torch.Tensor) else x, list(arguments)))
        return tree_map(lambda x: x.to(tensors[0].device) if isinstance(x, torch.Tensor) else x, found)

    return call


def _register() -> None:
    torch.utils.rename_privateuse1_backend(NAME)
    load(name="second_device", sources=[str(Path(__file__).with_name("device.cpp"))], extra_cflags=["-O1"])
    module: Any = types.ModuleType(f"torch.{NAME}")
    for name, value in {"is_available": True, "device_count": 1, "current_device": 0, "_is_in_bad_fork": False}.items():
        setattr(module, name, lambda value=value: value)
    for name in ("manual_seed", "manual_seed_all", "synchronize", "empty_cache", "set_device"):
        setattr(module, name, lambda *_: None)
    module.get_amp_supported_dtype = lambda: [torch.bfloat16, torch.float16]
    module.device = lambda *_: contextlib.nullcontext()
    module.get_rng_state, module.set_rng_state = (lambda *_: torch.get_rng_state()), (lambda state, *_: None)
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend(for_storage=True)
    # Other devices have fused cells of their own.
    for name in ("lstm", "lstm_cell", "gru_cell"):
        setattr(torch, name, on_host(getattr(torch, name)))


_register()
