"""The gated recurrence that computes every prefix mean, and the gates that turn it into a prefix softmax.

`plain` has them as associative scans of plain operations, `numba` as compiled loops for a CPU, and `triton` as kernels
for a GPU.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.ops.execution import accumulation_dtype, exporting, transformed
from longspan.ops.operators import empty, operator
from longspan.ops.scan import plain
from longspan.ops.scan.plain import FLOOR

__all__ = [
    "FLOOR",
    "accumulation_dtype",
    "lerp_scan",
    "lerp_scan_naive",
    "softmax_gates",
    "softmax_gates_naive",
]


@operator("longspan::lerp_scan", plain.lerp_scan, loops="lerp_forward", kernels="lerp_forward")
def lerp_scan_operator(values: Tensor, gates: Tensor, initial: Tensor) -> tuple[Tensor, Tensor]:
    return empty(values), empty(initial)


@lerp_scan_operator.gradient(
    ("outputs", "final"), plain.lerp_scan_backward, loops="lerp_backward", kernels="lerp_backward"
)
def lerp_scan_gradient(
    grad_outputs: Tensor, grad_final: Tensor, values: Tensor, gates: Tensor, initial: Tensor, outputs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return empty(values), empty(gates), empty(initial)


@operator("longspan::softmax_gates", plain.softmax_gates, loops="gates_forward", kernels="gates_forward")
def softmax_gates_operator(logits: Tensor, initial: Tensor, starts: Tensor, rates: Tensor) -> tuple[Tensor, Tensor]:
    return empty(logits), empty(initial)


@softmax_gates_operator.gradient(
    ("gates", "final"), plain.softmax_gates_backward, loops="gates_backward", kernels="gates_backward"
)
def softmax_gates_gradient(
    grad_gates: Tensor, grad_final: Tensor, gates: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return empty(gates), empty(grad_final), empty(gates)


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
    if t == 0:
        return values, initial
    if exporting():
        outputs, final = plain.lerp_scan(values.to(dtype), gates.to(dtype), initial)
        return outputs.to(values.dtype), final
    wide, gates = values.to(dtype), gates.to(dtype)
    if t == 1:
        # A step of a stream: a kernel would not pay off.
        final = torch.lerp(initial, wide[:, 0], gates[:, 0] if gates.ndim == 4 else gates[:, 0].unsqueeze(-1))
        return final.unsqueeze(1).to(values.dtype), final
    scan = plain.lerp_scan if transformed() else lerp_scan_operator
    outputs, final = scan(wide, gates, initial)
    return outputs.to(values.dtype), final


def lerp_scan_naive(
    values: Tensor, gates: Tensor, initial: Tensor | None = None, starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `lerp_scan` one position after the other."""
    b, _, h, e = values.shape
    out = values.new_zeros(b, h, e) if initial is None else initial
    outputs = []
    for i in range(values.shape[1]):
        gate = gates[:, i] if gates.ndim == 4 else gates[:, i].unsqueeze(-1)
        if starts is not None:
            gate = torch.where(starts[:, i, None, None], 1.0, gate)
        out = (1 - gate) * out + gate * values[:, i]
        outputs.append(out)
    return torch.stack(outputs, 1) if outputs else values, out


def softmax_gates(
    logits: Float[Tensor, "b t h"],
    initial: Float[Tensor, "b h"] | None = None,
    starts: Bool[Tensor, "b t"] | None = None,
    rates: Float[Tensor, "b t h"] | None = None,
) -> tuple[Float[Tensor, "b t h"], Float[Tensor, "b h"]]:
    """Return the gates exp(z_t - n_t) that make `lerp_scan` a prefix softmax mean, and the last log-normaliser n.

    n_t = logaddexp(n_{t-1} - f_t, z_t); n_0 is `initial`, by default FLOOR: nothing seen. The `rates` f >= 0, by
    default zeros, are those of forgetting: position j weighs exp(z_j - Σ_{j<i<=t} f_i) in the mean at t. Where
    `starts` is True, n begins again. Logits nearer to FLOOR than to zero are hidden: their gates are exactly zero. The
    first gate after nothing seen is exactly one. Sums run in float64; gates come in at least float32, n in the type of
    `initial`. Cost: t·h.
    """
    b, t, h = logits.shape
    logits = logits.to(accumulation_dtype(logits.dtype))
    initial = logits.new_full((b, h), FLOOR) if initial is None else initial
    if t == 0:
        return logits, initial
    starts = logits.new_empty(b, 0, dtype=torch.bool) if starts is None else starts
    # For a step of a stream, a kernel would not pay off.
    find = plain.softmax_gates if exporting() or t == 1 or transformed() else softmax_gates_operator
    rates = logits.new_empty(b, 0, h) if rates is None else rates.to(logits.dtype)
    gates, final = find(logits, initial.to(plain.exact_dtype(logits.device)), starts, rates)
    return gates, final.to(initial.dtype)


def softmax_gates_naive(
    logits: Tensor, initial: Tensor | None = None, starts: Tensor | None = None, rates: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute `softmax_gates` one position after the other; hidden logits are FLOOR."""
    b, _, h = logits.shape
    normaliser = logits.new_full((b, h), FLOOR) if initial is None else initial
    gates = []
    for i in range(logits.shape[1]):
        if starts is not None:
            normaliser = normaliser.masked_fill(starts[:, i, None], FLOOR)
        if rates is not None:
            normaliser = normaliser - rates[:, i]
        hidden = logits[:, i] == FLOOR
        normaliser = torch.where(hidden, normaliser, torch.logaddexp(normaliser, logits[:, i]))
        gates.append((logits[:, i] - normaliser).exp().masked_fill(hidden, 0))
    return torch.stack(gates, 1) if gates else logits, normaliser
