"""How an op runs: by hand-written gradients and loops, or in plain operations, which anything can differentiate.

A gradient written by hand, a buffer used again and a compiled loop are faster than plain operations, and opaque: to
compilers, which could do better with plain operations, and to everything that differentiates in another way than one
backward pass. Each op that has such a form has a plain one beside it. All such decisions are made here.
"""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def by_hand() -> bool:
    """Return whether hand-written gradients, checkpoints and buffers serve: in eager mode, without transforms."""
    return not (torch.compiler.is_compiling() or transformed())


def transformed() -> bool:
    """Return whether a transform of torch.func (jvp, vmap, grad, ...) or forward-mode differentiation is at work."""
    return torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0


def on_cpu(tensor: Tensor) -> bool:
    """Return whether a CPU computes: what fits its caches is worth cutting out, and looking at data waits for none."""
    return tensor.device.type == "cpu"


def differentiated_further() -> bool:
    """Return, in a backward pass, whether it is itself to be differentiated or transformed."""
    return torch.is_grad_enabled() or transformed()


def plain_gradients(
    function: Callable[..., Any], inputs: Iterable[Any], upstream: tuple[Tensor, ...]
) -> tuple[Tensor | None, ...]:
    """Return the gradients of `function(*inputs)`, given those of its outputs, one for each input, in plain operations.

    Inputs without a gradient have None. These gradients have gradients themselves where those are asked for.
    """
    inputs = tuple(inputs)
    needed = [tensor for tensor in inputs if isinstance(tensor, Tensor) and tensor.requires_grad]
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        found = torch.autograd.grad(function(*inputs), needed, upstream, create_graph=again, allow_unused=True)
    rest = iter(found)
    return tuple(next(rest) if isinstance(x, Tensor) and x.requires_grad else None for x in inputs)
