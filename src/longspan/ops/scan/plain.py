"""Scans of plain tensor operations, for every device: about twice the work of a loop, in log2(t) parallel steps."""

from collections.abc import Callable

import torch
from torch import Tensor

from longspan.ops.execution import exporting
from longspan.ops.scan import unsized
from longspan.ops.scan.unsized import FLOOR, logaddexp

Parts = tuple[Tensor, Tensor]


def lerp_scan(values: Tensor, gates: Tensor, initial: Tensor) -> Parts:
    """Scan the maps o -> kept·o + added, whose composition is associative."""
    gates = _per_channel(gates)
    kept, added = _decays(gates), gates * values
    if exporting():
        outputs = unsized.lerp_scan(kept, added, initial)
        return outputs, outputs[:, -1].clone()
    added = torch.cat((added[:, :1] + kept[:, :1].to(added.dtype) * initial.unsqueeze(1), added[:, 1:]), 1)
    outputs = _linear_scan(kept, added)
    # A copy: a state that is a view would keep all outputs alive.
    return outputs, outputs[:, -1].clone()


def lerp_scan_backward(
    grad_outputs: Tensor, grad_final: Tensor, values: Tensor, gates: Tensor, initial: Tensor, outputs: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """G_t = do_t + (1 - w_{t+1}) G_{t+1}, dv_t = w_t G_t, dw_t = G_t·(v_t - o_{t-1}), d initial = (1 - w_1) G_1."""
    wide = _per_channel(gates)
    kept = _decays(wide)
    total = _backward_scan(kept, grad_outputs, grad_final)
    to_gates = total * (values - torch.cat((initial.unsqueeze(1), outputs[:, :-1]), 1))
    return wide * total, to_gates if gates.ndim == 4 else to_gates.sum(-1), kept[:, 0].to(total.dtype) * total[:, 0]


def softmax_gates(logits: Tensor, initial: Tensor, starts: Tensor, rates: Tensor) -> Parts:
    """Return exp(z_t - n_t), and the last n, of all `normalisers`."""
    found = normalisers(logits, initial, starts, rates)
    gates = (logits - found).exp().masked_fill(logits <= FLOOR / 2, 0)
    return gates.to(logits.dtype), found[:, -1].to(initial.dtype, copy=True)


def normalisers(logits: Tensor, initial: Tensor, starts: Tensor, rates: Tensor) -> Tensor:
    """Scan the maps n -> logaddexp(n + kept, z), `kept` being -f or, where n begins again, far below any n.

    `starts` is (b, t), or (b, 0) for none; `rates` f (b, t, h), or (b, 0, h) for zeros.
    """
    wide = logits.to(exact_dtype(logits.device))
    kept = -rates.to(wide.dtype) if rates.shape[1] else torch.zeros_like(wide)
    if starts.shape[1]:
        kept = kept.masked_fill(starts.unsqueeze(-1), 2 * FLOOR)
    start = initial.to(wide.dtype).unsqueeze(1)
    if exporting() and not starts.shape[1]:
        # With forgetting, n_t + Σ_{i<=t} f_i is an ordinary sum.
        passed = -kept.cumsum(1) if rates.shape[1] else kept
        return logaddexp(unsized.logcumsumexp(wide + passed), start) - passed
    first = logaddexp(wide[:, :1], start + kept[:, :1])
    return _associative_scan(
        lambda left, right: (left[0] + right[0], logaddexp(right[1], left[1] + right[0])),
        (kept, torch.cat((first, wide[:, 1:]), 1)),
    )[1]


def softmax_gates_backward(
    grad_gates: Tensor, grad_final: Tensor, gates: Tensor, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """N_t = -w_t dw_t + (1 - w_{t+1}) N_{t+1}, dz_t = w_t (dw_t + N_t), df_t = -(1 - w_t) N_t, d initial = -df_1."""
    wide, change = (tensor.to(exact_dtype(gates.device)) for tensor in (gates, grad_gates))
    kept = 1 - wide
    if starts.shape[1]:
        kept = kept.masked_fill(starts.unsqueeze(-1), 0)
    towards = _backward_scan(kept, -wide * change, grad_final.to(wide.dtype))
    before = kept * towards
    return (
        (wide * (change + towards)).to(gates.dtype),
        before[:, 0].to(grad_final.dtype, copy=True),
        (-before).to(gates.dtype),
    )


def logcumsumexp(x: Tensor) -> Tensor:
    """Return log Σ_{j<=t} exp(x_j) along dimension 1, of numbers (b, t, n)."""
    return unsized.logcumsumexp(x) if exporting() else x.logcumsumexp(1)


def exact_dtype(device: torch.device) -> torch.dtype:
    """Return the type of sums over any number of positions."""
    return torch.float32 if device.type == "mps" else torch.float64


def _per_channel(gates: Tensor) -> Tensor:
    return gates if gates.ndim == 4 else gates.unsqueeze(-1)


def _decays(gates: Tensor) -> Tensor:
    # In float32 the weights of 65,536 positions would add up to one only to 1e-4.
    return 1 - gates.to(exact_dtype(gates.device))


def _linear_scan(kept: Tensor, added: Tensor) -> Tensor:
    """Return all o_t = kept_t·o_{t-1} + added_t, o_0 being zero."""
    return _associative_scan(
        lambda left, right: (left[0] * right[0], right[1] + right[0].to(right[1].dtype) * left[1]), (kept, added)
    )[1]


def _backward_scan(kept: Tensor, added: Tensor, last: Tensor) -> Tensor:
    """Return all G_t = added_t + kept_{t+1}·G_{t+1}, to the last of which `last` is added."""
    added = torch.cat((added[:, :-1], added[:, -1:] + last.unsqueeze(1)), 1)
    following = torch.cat((kept[:, 1:], kept[:, :1]), 1)
    return _linear_scan(following.flip(1), added.flip(1)).flip(1)


def _associative_scan(combine: Callable[[Parts, Parts], Parts], parts: Parts) -> Parts:
    """Return all prefixes of `parts` along dimension 1 under an associative `combine`, in O(t) work."""
    t = parts[0].shape[1]
    if t < 2:
        return parts
    odd = _associative_scan(combine, combine(_part(parts, slice(0, t - 1, 2)), _part(parts, slice(1, None, 2))))
    later = combine(_part(odd, slice(0, (t - 1) // 2)), _part(parts, slice(2, None, 2)))
    return (
        _interleaved(torch.cat((parts[0][:, :1], later[0]), 1), odd[0]),
        _interleaved(torch.cat((parts[1][:, :1], later[1]), 1), odd[1]),
    )


def _part(parts: Parts, positions: slice) -> Parts:
    return parts[0][:, positions], parts[1][:, positions]


def _interleaved(even: Tensor, odd: Tensor) -> Tensor:
    """Return even_0, odd_0, even_1, odd_1, ... along dimension 1; `even` may be one longer."""
    n = odd.shape[1]
    both = torch.stack((even[:, :n], odd), 2).flatten(1, 2)
    return both if even.shape[1] == n else torch.cat((both, even[:, n:]), 1)
