"""The gated recurrence behind every prefix mean, and the gates that turn it into a prefix softmax.

On a CPU both are compiled loops (`longspan.kernels`), behind operators that torch.compile and torch.export see as such.
Elsewhere, or without Numba, they are associative scans of plain tensor operations: about twice the work, in log2(t)
parallel steps.
"""

import importlib.util
from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

# Stands for minus infinity: finite, so that no difference of two of them is NaN, and so far below any logit that
# exp() of its distance to one is exactly zero. Whatever is nearer to it than to zero counts as hidden.
FLOOR = -1e30

_NUMBA = importlib.util.find_spec("numba") is not None


def numba_available() -> bool:
    """Return whether Numba is installed; it is imported only when a scan runs."""
    return _NUMBA


def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type sums are taken in: float32 for half precision, otherwise `dtype` itself."""
    return torch.promote_types(dtype, torch.float32)


def lerp_scan(
    values: Float[Tensor, "b t h e"],
    gates: Float[Tensor, "b t h"] | Float[Tensor, "b t h e"],
    initial: Float[Tensor, "b h e"] | None = None,
    starts: Bool[Tensor, "b t"] | None = None,
) -> tuple[Float[Tensor, "b t h e"], Float[Tensor, "b h e"]]:
    """Return all o_t = o_{t-1} + w_t (v_t - o_{t-1}), in the type of `values`, and the last, in at least float32.

    The gates w lie in [0, 1]: one per head, or one per channel. o_0 is `initial`, zero by default. Where `starts` is
    True the gate is 1, whatever `gates` says: what came before is forgotten exactly. Cost: t·h·e.
    """
    b, t, h, e = values.shape
    dtype = accumulation_dtype(values.dtype)
    if starts is not None:
        gates = gates.masked_fill(starts.view(b, t, *[1] * (gates.ndim - 2)), 1)
    initial = values.new_zeros(b, h, e, dtype=dtype) if initial is None else initial.to(dtype)
    wide, gates = values.to(dtype), gates.to(dtype)
    if t == 1:
        # A step of a stream: not worth a kernel.
        final = torch.lerp(initial, wide[:, 0], gates[:, 0] if gates.ndim == 4 else gates[:, 0].unsqueeze(-1))
        return final.unsqueeze(1).to(values.dtype), final
    if _compiled_loops_serve(values):
        outputs, final = _lerp_scan(wide, gates, initial)
    else:
        outputs, final = _lerp_scan_in_torch(wide, gates if gates.ndim == 4 else gates.unsqueeze(-1), initial)
    return outputs.to(values.dtype), final


def lerp_scan_naive(
    values: Tensor, gates: Tensor, initial: Tensor | None = None, starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `lerp_scan` one position after the other."""
    out = torch.zeros_like(values[:, 0]) if initial is None else initial
    outputs = []
    for i in range(values.shape[1]):
        gate = gates[:, i] if gates.ndim == 4 else gates[:, i].unsqueeze(-1)
        if starts is not None:
            gate = torch.where(starts[:, i, None, None], 1.0, gate)
        out = (1 - gate) * out + gate * values[:, i]
        outputs.append(out)
    return torch.stack(outputs, 1), out


def softmax_gates(
    logits: Float[Tensor, "b t h"],
    initial: Float[Tensor, "b h"] | None = None,
    starts: Bool[Tensor, "b t"] | None = None,
) -> tuple[Float[Tensor, "b t h"], Float[Tensor, "b h"]]:
    """Return the gates exp(z_t - n_t) that make `lerp_scan` a prefix softmax mean, and the last log-normaliser n.

    n_t = logaddexp(n_{t-1}, z_t); n_0 is `initial`, by default FLOOR: nothing seen. Where `starts` is True, n begins
    anew. Logits nearer to FLOOR than to zero are hidden: their gates are exactly zero. The first gate after nothing
    seen is exactly one. Sums run in float64; gates come in at least float32, n in the type of `initial`. Cost: t·h.
    """
    b, t, h = logits.shape
    logits = logits.to(accumulation_dtype(logits.dtype))
    initial = logits.new_full((b, h), FLOOR) if initial is None else initial
    if t > 1 and _compiled_loops_serve(logits):
        starts = logits.new_empty(b, 0, dtype=torch.bool) if starts is None else starts
        gates, final = _softmax_gates(logits, initial.double(), starts)
    else:
        gates, final = _softmax_gates_in_torch(logits, initial, starts)
    return gates, final.to(initial.dtype)


def softmax_gates_naive(
    logits: Tensor, initial: Tensor | None = None, starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `softmax_gates` one position after the other; hidden logits are FLOOR."""
    normaliser = torch.full_like(logits[:, 0], FLOOR) if initial is None else initial
    gates = []
    for i in range(logits.shape[1]):
        if starts is not None:
            normaliser = normaliser.masked_fill(starts[:, i, None], FLOOR)
        hidden = logits[:, i] == FLOOR
        normaliser = torch.where(hidden, normaliser, torch.logaddexp(normaliser, logits[:, i]))
        gates.append((logits[:, i] - normaliser).exp().masked_fill(hidden, 0))
    return torch.stack(gates, 1), normaliser


def _compiled_loops_serve(tensor: Tensor) -> bool:
    return tensor.device.type == "cpu" and numba_available()


def _kernels() -> ModuleType:
    from longspan.kernels import scan

    return scan


def _arrays(*tensors: Tensor) -> list[Any]:
    return [tensor.contiguous().numpy() for tensor in tensors]


def _new(tensor: Tensor) -> Tensor:
    return tensor.new_empty(tensor.shape)


@torch.library.custom_op("longspan::lerp_scan", mutates_args=(), device_types="cpu")
def _lerp_scan(values: Tensor, gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    outputs, final = _new(values), _new(initial)
    _kernels().lerp_forward(*_arrays(values, gates, initial, outputs, final), torch.get_num_threads())
    return outputs, final


@torch.library.custom_op("longspan::lerp_scan_backward", mutates_args=(), device_types="cpu")
def _lerp_scan_backward(
    grad_outputs: Tensor, grad_final: Tensor, values: Tensor, gates: Tensor, initial: Tensor, outputs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    made = _new(values), _new(gates), _new(initial)
    arrays = _arrays(grad_outputs, grad_final, values, gates, initial, outputs, *made)
    _kernels().lerp_backward(*arrays, torch.get_num_threads())
    return made


@torch.library.custom_op("longspan::softmax_gates", mutates_args=(), device_types="cpu")
def _softmax_gates(logits: Tensor, initial: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    gates, final = _new(logits), _new(initial)
    _kernels().gates_forward(*_arrays(logits, initial, starts, gates, final), FLOOR / 2, torch.get_num_threads())
    return gates, final


@torch.library.custom_op("longspan::softmax_gates_backward", mutates_args=(), device_types="cpu")
def _softmax_gates_backward(
    grad_gates: Tensor, grad_final: Tensor, gates: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor]:
    made = _new(gates), _new(grad_final)
    _kernels().gates_backward(*_arrays(grad_gates, grad_final, gates, starts, *made), torch.get_num_threads())
    return made


@_lerp_scan.register_fake
def _(values: Tensor, gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    return _new(values), _new(initial)


@_lerp_scan_backward.register_fake
def _(
    grad_outputs: Tensor, grad_final: Tensor, values: Tensor, gates: Tensor, initial: Tensor, outputs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return _new(values), _new(gates), _new(initial)


@_softmax_gates.register_fake
def _(logits: Tensor, initial: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    return _new(logits), _new(initial)


@_softmax_gates_backward.register_fake
def _(grad_gates: Tensor, grad_final: Tensor, gates: Tensor, starts: Tensor) -> tuple[Tensor, Tensor]:
    return _new(gates), _new(grad_final)


def _save_scan(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*inputs, output[0])


def _scan_gradients(ctx: Any, grad_outputs: Tensor, grad_final: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return _lerp_scan_backward(grad_outputs, grad_final, *ctx.saved_tensors)


def _save_gates(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(output[0], inputs[2])


def _gate_gradients(ctx: Any, grad_gates: Tensor, grad_final: Tensor) -> tuple[Tensor, Tensor, None]:
    return *_softmax_gates_backward(grad_gates, grad_final, *ctx.saved_tensors), None


_lerp_scan.register_autograd(_scan_gradients, setup_context=_save_scan)
_softmax_gates.register_autograd(_gate_gradients, setup_context=_save_gates)


def _lerp_scan_in_torch(values: Tensor, gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    """Scan the maps o -> kept·o + added, whose composition is associative."""
    # In float32 the weights of 65,536 positions would add up to one only to 1e-4.
    kept, added = 1 - gates.to(_exact_dtype(gates.device)), gates * values
    added = torch.cat((added[:, :1] + kept[:, :1].to(added.dtype) * initial.unsqueeze(1), added[:, 1:]), 1)
    _, outputs = _associative_scan(
        lambda left, right: (left[0] * right[0], right[1] + right[0].to(right[1].dtype) * left[1]), (kept, added)
    )
    # A copy: a state that is a view would keep all outputs alive.
    return outputs, outputs[:, -1].clone()


def _softmax_gates_in_torch(logits: Tensor, initial: Tensor, starts: Tensor | None) -> tuple[Tensor, Tensor]:
    """Scan the maps n -> logaddexp(n + kept, z), `kept` being 0 or, where n begins anew, far below any n."""
    wide = logits.to(_exact_dtype(logits.device))
    kept = torch.zeros_like(wide)
    if starts is not None:
        kept = kept.masked_fill(starts.unsqueeze(-1), 2 * FLOOR)
    first = torch.logaddexp(wide[:, :1], initial.to(wide.dtype).unsqueeze(1) + kept[:, :1])
    _, normalisers = _associative_scan(
        lambda left, right: (left[0] + right[0], torch.logaddexp(right[1], left[1] + right[0])),
        (kept, torch.cat((first, wide[:, 1:]), 1)),
    )
    gates = (wide - normalisers).exp().masked_fill(wide <= FLOOR / 2, 0)
    return gates.to(logits.dtype), normalisers[:, -1]


def _exact_dtype(device: torch.device) -> torch.dtype:
    return torch.float32 if device.type == "mps" else torch.float64


Parts = tuple[Tensor, Tensor]


def _associative_scan(combine: Callable[[Parts, Parts], Parts], parts: Parts) -> Parts:
    """Return all prefixes of `parts` along dimension 1 under an associative `combine`, in O(t) work."""
    t = parts[0].shape[1]
    if t < 2:
        return parts
    odd = _associative_scan(combine, combine(_each(parts, slice(0, t - 1, 2)), _each(parts, slice(1, None, 2))))
    later = combine(_each(odd, slice(0, (t - 1) // 2)), _each(parts, slice(2, None, 2)))
    return (
        _interleaved(torch.cat((parts[0][:, :1], later[0]), 1), odd[0]),
        _interleaved(torch.cat((parts[1][:, :1], later[1]), 1), odd[1]),
    )


def _each(parts: Parts, positions: slice) -> Parts:
    return parts[0][:, positions], parts[1][:, positions]


def _interleaved(even: Tensor, odd: Tensor) -> Tensor:
    """Return even_0, odd_0, even_1, odd_1, ... along dimension 1; `even` may be one longer."""
    n = odd.shape[1]
    both = torch.stack((even[:, :n], odd), 2).flatten(1, 2)
    return both if even.shape[1] == n else torch.cat((both, even[:, n:]), 1)
