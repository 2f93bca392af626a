"""Execution of an op: by hand-written gradients and loops, or in plain operations, which anything can differentiate.

Hand-written gradients, reused buffers and compiled loops are faster than plain operations. But they are opaque to
compilers, which could do better with plain operations, and to every kind of differentiation except one backward pass.
Each op with such a form also has a plain one. All such decisions are made here.
"""

import importlib.util
import os
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

# It comes with PyTorch's builds for GPUs on Linux. Importing it takes long, so that only its kernels do. Whoever has a
# GPU on which they fail sets LONGSPAN_TRITON=0.
TRITON = importlib.util.find_spec("triton") is not None and os.environ.get("LONGSPAN_TRITON") != "0"


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """The type sums are taken in: float32 for half precision, otherwise `dtype` itself."""
    return torch.promote_types(dtype, torch.float32)


def by_hand() -> bool:
    """Return whether hand-written gradients, checkpoints and buffers can be used: in eager mode, without transforms."""
    return not (torch.compiler.is_compiling() or transformed())


def transformed() -> bool:
    """Return whether a transform of torch.func (jvp, vmap, grad, ...) or forward-mode differentiation is active."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def exporting() -> bool:
    """Return whether torch.export is making a program of an op: one that serves inputs of any size, and runs without
    longspan. So no branch may depend on a size, and no operator may be one of ours."""
    # Not `is_exporting()`: compilers of PyTorch before 2.13 take that for True.
    return torch.compiler._is_exporting_flag


def without_autocast(tensor: Tensor) -> AbstractContextManager[None]:
    """Return a context in which autocast does nothing. Programs have none: a file cannot hold it around a scan."""
    return nullcontext() if exporting() else torch.autocast(tensor.device.type, enabled=False)


def on_cpu(tensor: Tensor) -> bool:
    """Return whether `tensor` is on a CPU: there, blocks pay off, and reading values does not synchronise."""
    return tensor.device.type == "cpu"


def has_kernels(tensor: Tensor) -> bool:
    """Return whether kernels of products written in Triton run for `tensor`: on a GPU, where Triton is installed.

    Not all releases of Triton compile products of float64.
    """
    return tensor.is_cuda and TRITON and tensor.dtype != torch.float64


def differentiated_further() -> bool:
    """Return, in a backward pass, whether it will itself be differentiated or transformed."""
    return torch.is_grad_enabled() or transformed()


def several_at_once(gradient: Tensor) -> bool:
    """Return, in a backward pass, whether a gradient stands for several, which have no values to look at."""
    return bool(torch._C._functorch.is_legacy_batchedtensor(gradient))


def plain_gradients(
    function: Callable[..., Any], inputs: Iterable[Any], upstream: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `function(*inputs)`, given those of its outputs, one for each input, in plain operations.

    Inputs without a gradient have None. These gradients are themselves differentiable when that is requested.
    """
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, as one input may have been computed from another: gradients end at both.
        inputs = [x.view_as(x) if isinstance(x, Tensor) and x.requires_grad else x for x in inputs]
        needed = [x for x in inputs if isinstance(x, Tensor) and x.requires_grad]
        found = torch.autograd.grad(function(*inputs), needed, upstream, create_graph=again, allow_unused=True)
    rest = iter(found)
    return tuple(next(rest) if isinstance(x, Tensor) and x.requires_grad else None for x in inputs)
