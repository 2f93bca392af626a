"""The scans as PyTorch operators: torch.compile and torch.export see them as such, and each device has its kernel.

The kernel of every device is the plain one. A CPU has compiled loops where Numba is installed. A GPU has programs where
Triton is, which comes with PyTorch's builds for it. Kernels for another device are registered likewise.
"""

import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from longspan.ops.execution import TRITON, differentiated_further, plain_gradients
from longspan.ops.scan import plain
from longspan.ops.scan.plain import FLOOR


@custom_op("longspan::lerp_scan", mutates_args=())
def lerp_scan(values: Tensor, gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    return plain.lerp_scan(values, gates, initial)


@custom_op("longspan::lerp_scan_backward", mutates_args=())
def lerp_scan_backward(
    grad_outputs: Tensor, grad_final: Tensor, values: Tensor, gates: Tensor, initial: Tensor, outputs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return plain.lerp_scan_backward(grad_outputs, grad_final, values, gates, initial, outputs)


@custom_op("longspan::softmax_gates", mutates_args=())
def softmax_gates(logits: Tensor, initial: Tensor, starts: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    return plain.softmax_gates(logits, initial, starts, rates)


@custom_op("longspan::softmax_gates_backward", mutates_args=())
def softmax_gates_backward(
    grad_gates: Tensor, grad_final: Tensor, gates: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return plain.softmax_gates_backward(grad_gates, grad_final, gates, starts)


def _new(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)


@lerp_scan.register_fake
def _(values: Tensor, gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    return _new(values), _new(initial)


@lerp_scan_backward.register_fake
def _(
    grad_outputs: Tensor, grad_final: Tensor, values: Tensor, gates: Tensor, initial: Tensor, outputs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _new(values), _new(gates), _new(initial)


@softmax_gates.register_fake
def _(logits: Tensor, initial: Tensor, starts: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    return _new(logits), _new(initial)


@softmax_gates_backward.register_fake
def _(grad_gates: Tensor, grad_final: Tensor, gates: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _new(gates), _new(grad_final), _new(gates)


def _save_scan(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[0])


def _scan_gradients(ctx: Any, grad_outputs: Tensor, grad_final: Tensor) -> tuple[Tensor | None, ...]:
    if differentiated_further():
        return plain_gradients(plain.lerp_scan, ctx.saved_tensors[:3], (grad_outputs, grad_final))
    return lerp_scan_backward(grad_outputs, grad_final, *ctx.saved_tensors)


def _save_gates(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[0])


def _gate_gradients(ctx: Any, grad_gates: Tensor, grad_final: Tensor) -> tuple[Tensor | None, ...]:
    *inputs, gates = ctx.saved_tensors
    if differentiated_further():
        return plain_gradients(plain.softmax_gates, inputs, (grad_gates, grad_final))
    _, _, starts, rates = inputs
    to_logits, to_initial, to_rates = softmax_gates_backward(grad_gates, grad_final, gates, starts)
    return to_logits, to_initial, None, to_rates if rates.shape[1] else None


lerp_scan.register_autograd(_scan_gradients, setup_context=_save_scan)
softmax_gates.register_autograd(_gate_gradients, setup_context=_save_gates)


def _loops() -> ModuleType:
    # Numba is slow to import: the first scan waits for it, and nothing else does.
    from longspan.ops.scan import numba

    return numba


def _programs() -> ModuleType:
    # As slow.
    from longspan.ops.scan import triton

    return triton


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.contiguous().numpy() for tensor in tensors]


def _adjacent(*tensors: Tensor) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def _register(
    device: str,
    kernels: Callable[[], ModuleType],
    handed: Callable[..., list[Any]],
    more: Callable[[], tuple[Any, ...]] = tuple,
) -> None:
    """Register kernels that fill what they are given: what they take of tensors, and `more` after all else."""

    @lerp_scan.register_kernel(device)
    def _(values: Tensor, gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
        outputs, final = _new(values), _new(initial)
        kernels().lerp_forward(*handed(values, gates, initial, outputs, final), *more())
        return outputs, final

    @lerp_scan_backward.register_kernel(device)
    def _(
        grad_outputs: Tensor, grad_final: Tensor, values: Tensor, gates: Tensor, initial: Tensor, outputs: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        made = _new(values), _new(gates), _new(initial)
        given = handed(grad_outputs, grad_final, values, gates, initial, outputs, *made)
        kernels().lerp_backward(*given, *more())
        return made

    @softmax_gates.register_kernel(device)
    def _(logits: Tensor, initial: Tensor, starts: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
        gates, final = _new(logits), _new(initial)
        given = handed(logits, initial, starts, rates, gates, final)
        kernels().gates_forward(*given, FLOOR / 2, *more())
        return gates, final

    @softmax_gates_backward.register_kernel(device)
    def _(grad_gates: Tensor, grad_final: Tensor, gates: Tensor, starts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        made = _new(gates), _new(grad_final), _new(gates)
        kernels().gates_backward(*handed(grad_gates, grad_final, gates, starts, *made), *more())
        return made


if importlib.util.find_spec("numba") is not None:
    _register("cpu", _loops, _arrays, lambda: (torch.get_num_threads(),))
if TRITON:
    _register("cuda", _programs, _adjacent)
