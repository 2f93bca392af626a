"""The gated recurrence, the gates of a prefix softmax and their gradients as compiled loops over positions.

NumPy arrays in and out, no tensors, all of them C-contiguous. Sums over positions run in float64, whatever the arrays
hold. Rows and heads are independent of each other, so they are divided among threads of this process.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from longspan.ops.compiled import compiled
from longspan.ops.scan.unsized import FLOOR
from longspan.ops.threads import in_slices

# Elements per slice below which handing one to another thread costs more than it saves: a single core nearly keeps up
# with the memory, and two took longer than one at every size up to 65,536 x 256.
WORTH_SHARING = 1 << 26
# Bytes of gradients that the backward scan fetches at a time: they stay in a core's own cache.
BLOCK_BYTES = 1 << 18
# A logit this far above the reference of a running sum becomes the reference: exp(40) is nowhere near infinity.
HEADROOM = 40.0


def lerp_forward(
    values: np.ndarray, gates: np.ndarray, initial: np.ndarray, outputs: np.ndarray, final: np.ndarray
) -> None:
    """Fill `outputs` (b, t, h, e) with o_t = o_{t-1} + w_t (v_t - o_{t-1}) and `final` (b, h, e) with the last.

    `gates` is (b, t, h), or (b, t, h, e) for a gate per channel.
    """
    _share_heads(_lerp_forward, (values, gates, initial, outputs, final), values, gates)


def lerp_backward(
    grad_outputs: np.ndarray,
    grad_final: np.ndarray,
    values: np.ndarray,
    gates: np.ndarray,
    initial: np.ndarray,
    outputs: np.ndarray,
    grad_values: np.ndarray,
    grad_gates: np.ndarray,
    grad_initial: np.ndarray,
) -> None:
    """Fill the last three arrays with the gradients of `lerp_forward`.

    G_t = do_t + (1 - w_{t+1}) G_{t+1}, dv_t = w_t G_t, dw_t = G_t·(v_t - o_{t-1}), d initial = (1 - w_1) G_1.
    """
    arrays = (grad_outputs, grad_final, values, gates, initial, outputs, grad_values, grad_gates, grad_initial)
    _share_heads(_lerp_backward, arrays, values, gates)


def gates_forward(
    logits: np.ndarray,
    initial: np.ndarray,
    starts: np.ndarray,
    rates: np.ndarray,
    gates: np.ndarray,
    final: np.ndarray,
) -> None:
    """Fill `gates` (b, t, h) with exp(z_t - n_t), n_t = logaddexp(n_{t-1} - f_t, z_t), and `final` (b, h) with the
    last n.

    Logits up to FLOOR / 2 weigh nothing, and an `initial` up to it has seen nothing. `starts` (b, t), or (b, 0) for
    none, says where n restarts; `rates` f are (b, t, h), or (b, 0, h) for zeros.
    """
    _share(_gates_forward, (logits, initial, starts, rates, gates, final, FLOOR / 2), len(logits), logits.size)


def gates_backward(
    grad_gates: np.ndarray,
    grad_final: np.ndarray,
    gates: np.ndarray,
    starts: np.ndarray,
    grad_logits: np.ndarray,
    grad_initial: np.ndarray,
    grad_rates: np.ndarray,
) -> None:
    """Fill the last three arrays with the gradients of `gates_forward`, for which the gates suffice.

    N_t = -w_t dw_t + (1 - w_{t+1}) N_{t+1}, dz_t = w_t (dw_t + N_t), df_t = -(1 - w_t) N_t, d initial = -df_1.
    """
    arrays = (grad_gates, grad_final, gates, starts, grad_logits, grad_initial, grad_rates)
    _share(_gates_backward, arrays, len(gates), gates.size)


def _share_heads(
    kernel: Callable[..., None], arrays: tuple[np.ndarray, ...], values: np.ndarray, gates: np.ndarray
) -> None:
    rows, _, heads, width = values.shape
    if gates.ndim == 4:
        # With a gate per channel, channels are independent, and heads may be cut to suit the threads.
        channels, heads = heads * width, math.gcd(heads * width, torch.get_num_threads())
        arrays = tuple(array.reshape(*array.shape[:-2], heads, channels // heads) for array in arrays)
    _share(kernel, arrays, rows * heads, values.size)


def _share(kernel: Callable[..., None], arguments: tuple[Any, ...], units: int, elements: int) -> None:
    """Run `kernel(*arguments, first, last)` over `units` cut into as many slices as are worth a thread each."""
    in_slices(kernel, arguments, units, elements // WORTH_SHARING)


def _inner(function: Callable[..., None]) -> Callable[..., None]:
    """Compile a loop over the channels of one position.

    As separate functions over one-dimensional arrays, these loops vectorise; written into the loops over positions
    they do not, and take three times as long.
    """
    return compiled(function, inline="never")


# The loops below take slices as units of one head of one row, `first` to `last`. Their innermost loops run over
# adjacent channels. The number of dimensions of `gates` is known at compile time, so one branch on it remains.


@_inner
def _spread(gates: np.ndarray, low: int, high: int, width: int, channels: np.ndarray) -> None:
    """Write a position's gate of each head to all of its channels."""
    for head in range(low, high):
        channels[head * width : (head + 1) * width] = gates[head]


@_inner
def _advance(values: np.ndarray, gate: np.ndarray, state: np.ndarray, outputs: np.ndarray) -> None:
    for c in range(len(values)):
        value, w = np.float64(values[c]), np.float64(gate[c])
        # A gate of 1 forgets everything, rounding included.
        out = value if w == 1 else state[c] + w * (value - state[c])
        state[c] = out
        outputs[c] = out


@_inner
def _fetch(gradients: np.ndarray, sink: np.ndarray) -> None:
    """Read everything into the cache. Nobody needs the sum, but without it the reads would be optimised away."""
    total = gradients[0]
    for i in range(1, len(gradients)):
        total += gradients[i]
    sink[0] = total


@_inner
def _accumulate(gradient: np.ndarray, gate: np.ndarray, carry: np.ndarray, total: np.ndarray) -> None:
    for c in range(len(gradient)):
        exact = carry[c] + gradient[c]
        total[c] = exact
        carry[c] = exact - np.float64(gate[c]) * exact


@_inner
def _distribute(
    total: np.ndarray,
    gate: np.ndarray,
    values: np.ndarray,
    before: np.ndarray,
    grad_values: np.ndarray,
    grad_gate: np.ndarray,
) -> None:
    for c in range(len(total)):
        grad_values[c] = gate[c] * total[c]
        grad_gate[c] = total[c] * (values[c] - before[c])


@compiled
def _lerp_forward(
    values: np.ndarray,
    gates: np.ndarray,
    initial: np.ndarray,
    outputs: np.ndarray,
    final: np.ndarray,
    first: int,
    last: int,
) -> None:
    b, t, h, e = values.shape
    read, written = values.reshape(b, t, h * e), outputs.reshape(b, t, h * e)
    given_gates = gates.reshape(b, t, h * e if gates.ndim == 4 else h)
    state, spread = np.empty(h * e), np.empty(h * e, gates.dtype)
    for row in range(first // h, (last + h - 1) // h):
        low, high = max(first - row * h, 0), min(last - row * h, h)
        own = slice(low * e, high * e)
        state[own] = initial.reshape(b, h * e)[row, own]
        for i in range(t):
            if gates.ndim == 4:
                gate = given_gates[row, i, own]
            else:
                _spread(given_gates[row, i], low, high, e, spread)
                gate = spread[own]
            _advance(read[row, i, own], gate, state[own], written[row, i, own])
        final.reshape(b, h * e)[row, own] = state[own]


@compiled
def _lerp_backward(
    grad_outputs: np.ndarray,
    grad_final: np.ndarray,
    values: np.ndarray,
    gates: np.ndarray,
    initial: np.ndarray,
    outputs: np.ndarray,
    grad_values: np.ndarray,
    grad_gates: np.ndarray,
    grad_initial: np.ndarray,
    first: int,
    last: int,
) -> None:
    b, t, h, e = values.shape
    read, written = values.reshape(b, t, h * e), outputs.reshape(b, t, h * e)
    given, grad_read = grad_outputs.reshape(b, t, h * e), grad_values.reshape(b, t, h * e)
    per_position = h * e if gates.ndim == 4 else h
    flat, flat_gates = grad_outputs.reshape(b, t * h * e), gates.reshape(b, t * per_position)
    start = initial.reshape(b, h * e)
    given_gates, wanted_gates = gates.reshape(b, t, per_position), grad_gates.reshape(b, t, per_position)
    # Only sums over positions need more digits than their terms.
    carry, spread, products = np.empty(h * e), np.empty(h * e, gates.dtype), np.empty(h * e, gates.dtype)
    # Memory is read upwards, which processors prefetch, though the recurrence runs downwards: block by block, the
    # gradients are fetched, turned into G, and used.
    block = max(1, min(t, BLOCK_BYTES // (values.itemsize * h * e)))
    total = np.empty((block, h * e), values.dtype)
    for row in range(first // h, (last + h - 1) // h):
        low, high = max(first - row * h, 0), min(last - row * h, h)
        own = slice(low * e, high * e)
        carry[own] = grad_final.reshape(b, h * e)[row, own]
        for end in range(t, 0, -block):
            begin = max(end - block, 0)
            _fetch(flat[row, begin * h * e : end * h * e], products)
            if gates.ndim == 4:
                _fetch(flat_gates[row, begin * h * e : end * h * e], products)
            for back in range(end - begin):
                i = end - 1 - back
                if gates.ndim == 4:
                    gate = given_gates[row, i, own]
                else:
                    _spread(given_gates[row, i], low, high, e, spread)
                    gate = spread[own]
                _accumulate(given[row, i, own], gate, carry[own], total[i - begin, own])
            for i in range(begin, end):
                before = written[row, i - 1, own] if i else start[row, own]
                if gates.ndim == 4:
                    gate, grad_gate = given_gates[row, i, own], wanted_gates[row, i, own]
                else:
                    _spread(given_gates[row, i], low, high, e, spread)
                    gate, grad_gate = spread[own], products[own]
                _distribute(total[i - begin, own], gate, read[row, i, own], before, grad_read[row, i, own], grad_gate)
                if gates.ndim == 3:
                    for head in range(low, high):
                        wanted_gates[row, i, head] = products[head * e : (head + 1) * e].sum()
        grad_initial.reshape(b, h * e)[row, own] = carry[own]


@compiled
def _gates_forward(
    logits: np.ndarray,
    initial: np.ndarray,
    starts: np.ndarray,
    rates: np.ndarray,
    gates: np.ndarray,
    final: np.ndarray,
    hidden: float,
    first: int,
    last: int,
) -> None:
    _, t, h = logits.shape
    # Σ exp(z) = total · exp(reference); a total of 0 has seen nothing.
    reference, total = np.empty(h), np.empty(h)
    for row in range(first, last):
        for head in range(h):
            reference[head] = initial[row, head]
            total[head] = 1.0 if initial[row, head] > hidden else 0.0
        for i in range(t):
            again = starts.size > 0 and starts[row, i]
            for head in range(h):
                if again:
                    total[head] = 0.0
                if rates.size > 0:
                    # The sum shrinks, whose digits stay what they are.
                    reference[head] -= np.float64(rates[row, i, head])
                z = np.float64(logits[row, i, head])
                if z <= hidden:
                    gates[row, i, head] = 0.0
                    continue
                if total[head] == 0:
                    reference[head] = z
                elif z > reference[head] + HEADROOM:
                    total[head] *= math.exp(reference[head] - z)
                    reference[head] = z
                weight = math.exp(z - reference[head])
                total[head] += weight
                gates[row, i, head] = weight / total[head]
        for head in range(h):
            final[row, head] = 2 * hidden if total[head] == 0 else reference[head] + math.log(total[head])


@compiled
def _gates_backward(
    grad_gates: np.ndarray,
    grad_final: np.ndarray,
    gates: np.ndarray,
    starts: np.ndarray,
    grad_logits: np.ndarray,
    grad_initial: np.ndarray,
    grad_rates: np.ndarray,
    first: int,
    last: int,
) -> None:
    _, t, h = gates.shape
    carry = np.empty(h)
    for row in range(first, last):
        for head in range(h):
            carry[head] = grad_final[row, head]
        for back in range(t):
            i = t - 1 - back
            again = starts.size > 0 and starts[row, i]
            for head in range(h):
                gate = np.float64(gates[row, i, head])
                change = np.float64(grad_gates[row, i, head])
                towards = carry[head] - gate * change
                grad_logits[row, i, head] = gate * (change + towards)
                carry[head] = 0.0 if again else (1 - gate) * towards
                grad_rates[row, i, head] = -carry[head]
        for head in range(h):
            grad_initial[row, head] = carry[head]
