"""The gated recurrence, the gates of a prefix softmax and their gradients as kernels for a GPU.

A program takes channels of one head of one row, enough to keep the GPU busy, block of positions by block. Within a
block it runs an associative scan; from block to block it carries the last position's result. All of it in float64,
which costs little where waiting for memory costs most, and what PyTorch hands over and takes is read and written once.
Tensors are C-contiguous; those to fill come last.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from longspan.ops.scan.unsized import FLOOR

# Programs below which channels are spread further, and the fewest channels of one: those of one read of memory.
ENOUGH, FEWEST = 256, 4
# Numbers of a block, two float64 each, spread over the registers of a program's four warps.
NUMBERS = 2048
# Positions of a block at most.
LONGEST = 1024


@triton.jit
def _affine(kept, added, next_kept, next_added):  # type: ignore[no-untyped-def]
    """Compose o -> kept·o + added with the same of what is read next."""
    return kept * next_kept, next_added + next_kept * added


@triton.jit
def _logaddexp(one, other):  # type: ignore[no-untyped-def]
    return tl.maximum(one, other) + tl.log(1 + tl.exp(-tl.abs(one - other)))


@triton.jit
def _fading(kept, sum, next_kept, next_sum):  # type: ignore[no-untyped-def]
    """Compose n -> logaddexp(n + kept, sum) with the same of what is read next."""
    return kept + next_kept, _logaddexp(sum + next_kept, next_sum)


@triton.jit
def _row_of(block, at, position):  # type: ignore[no-untyped-def]
    """Return the row of a block (n, c) whose `at` (n,) is `position`."""
    return tl.sum(tl.where((at == position)[:, None], block, 0.0), 0)


@triton.jit
def _lerp_forward(  # type: ignore[no-untyped-def]
    values, gates, initial, outputs, final, t, h, e, PER_CHANNEL: tl.constexpr, T: tl.constexpr, E: tl.constexpr
):
    head = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * E + tl.arange(0, E)
    inside = channel < e
    carried = tl.load(initial + head * e + channel, mask=inside, other=0).to(tl.float64)
    for start in range(0, t, T):
        at = start + tl.arange(0, T)
        place = (head // h * t + at) * h + head % h
        here = place[:, None] * e + channel[None, :]
        real = (at < t)[:, None] & inside[None, :]
        value = tl.load(values + here, mask=real, other=0).to(tl.float64)
        if PER_CHANNEL:
            gate = tl.load(gates + here, mask=real, other=0).to(tl.float64)
        else:
            gate = tl.load(gates + place, mask=at < t, other=0).to(tl.float64)
            gate = tl.broadcast_to(gate[:, None], (T, E))
        kept, added = tl.associative_scan((1 - gate, gate * value), 0, _affine)
        out = added + kept * carried[None, :]
        tl.store(outputs + here, out, mask=real)
        carried = _row_of(out, at, start + T - 1)
    tl.store(final + head * e + channel, carried, mask=inside)


@triton.jit
def _lerp_backward(  # type: ignore[no-untyped-def]
    grad_outputs,
    grad_final,
    values,
    gates,
    initial,
    outputs,
    grad_values,
    grad_gates,
    grad_initial,
    t,
    h,
    e,
    PER_CHANNEL: tl.constexpr,
    T: tl.constexpr,
    E: tl.constexpr,
):
    head = tl.program_id(0).to(tl.int64)
    channel = tl.program_id(1) * E + tl.arange(0, E)
    inside = channel < e
    carried = tl.load(grad_final + head * e + channel, mask=inside, other=0).to(tl.float64)
    first = tl.load(initial + head * e + channel, mask=inside, other=0).to(tl.float64)
    blocks = tl.cdiv(t, T)
    for number in range(blocks):
        start = (blocks - 1 - number) * T
        at = start + tl.arange(0, T)
        place = (head // h * t + at) * h + head % h
        here = place[:, None] * e + channel[None, :]
        real = (at < t)[:, None] & inside[None, :]
        # Beyond the last position nothing is lost: its gate would be zero.
        later = (at + 1 < t)[:, None] & inside[None, :]
        if PER_CHANNEL:
            gate = tl.load(gates + here, mask=real, other=0).to(tl.float64)
            following = tl.load(gates + here + h * e, mask=later, other=0).to(tl.float64)
        else:
            gate = tl.load(gates + place, mask=at < t, other=0).to(tl.float64)[:, None]
            following = tl.load(gates + place + h, mask=at + 1 < t, other=0).to(tl.float64)
            following = tl.broadcast_to(following[:, None], (T, E))
        change = tl.load(grad_outputs + here, mask=real, other=0).to(tl.float64)
        kept, added = tl.associative_scan((1 - following, change), 0, _affine, reverse=True)
        total = added + kept * carried[None, :]
        tl.store(grad_values + here, gate * total, mask=real)
        value = tl.load(values + here, mask=real, other=0).to(tl.float64)
        before = tl.load(outputs + here - h * e, mask=real & (at > 0)[:, None], other=0).to(tl.float64)
        change = total * (value - tl.where((at > 0)[:, None], before, first[None, :]))
        if PER_CHANNEL:
            tl.store(grad_gates + here, change, mask=real)
        else:
            # One sum for each program of a head.
            sums = tl.sum(tl.where(real, change, 0.0), 1)
            tl.store(grad_gates + place * tl.num_programs(1) + tl.program_id(1), sums, mask=at < t)
        carried = _row_of(total, at, start)
    place = head // h * t * h + head % h
    gate = tl.load(gates + place * e + channel, mask=inside, other=0) if PER_CHANNEL else tl.load(gates + place)
    tl.store(grad_initial + head * e + channel, (1 - gate.to(tl.float64)) * carried, mask=inside)


@triton.jit
def _gates_forward(  # type: ignore[no-untyped-def]
    logits,
    initial,
    starts,
    rates,
    gates,
    final,
    t,
    h,
    hidden,
    STARTS: tl.constexpr,
    RATES: tl.constexpr,
    T: tl.constexpr,
    H: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * H + tl.arange(0, H)
    inside = head < h
    # Half of what stands for minus infinity is what hides.
    nothing = 2.0 * hidden
    carried = tl.load(initial + row * h + head, mask=inside, other=0).to(tl.float64)
    for start in range(0, t, T):
        at = start + tl.arange(0, T)
        here = (row * t + at)[:, None] * h + head[None, :]
        real = (at < t)[:, None] & inside[None, :]
        logit = tl.load(logits + here, mask=real, other=nothing).to(tl.float64)
        kept = tl.zeros((T, H), tl.float64)
        if RATES:
            kept -= tl.load(rates + here, mask=real, other=0).to(tl.float64)
        if STARTS:
            begins = tl.load(starts + row * t + at, mask=at < t, other=0) != 0
            kept = tl.where(begins[:, None], 2 * nothing, kept)
        passed, sum = tl.associative_scan((kept, logit), 0, _fading)
        normaliser = _logaddexp(passed + carried[None, :], sum)
        gate = tl.where(logit <= hidden, 0.0, tl.exp(logit - normaliser))
        tl.store(gates + here, gate, mask=real)
        carried = _row_of(normaliser, at, start + T - 1)
    tl.store(final + row * h + head, carried, mask=inside)


@triton.jit
def _gates_backward(  # type: ignore[no-untyped-def]
    grad_gates,
    grad_final,
    gates,
    starts,
    grad_logits,
    grad_initial,
    grad_rates,
    t,
    h,
    STARTS: tl.constexpr,
    T: tl.constexpr,
    H: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * H + tl.arange(0, H)
    inside = head < h
    carried = tl.load(grad_final + row * h + head, mask=inside, other=0).to(tl.float64)
    lost = tl.zeros((H,), tl.float64)
    blocks = tl.cdiv(t, T)
    for number in range(blocks):
        start = (blocks - 1 - number) * T
        at = start + tl.arange(0, T)
        here = (row * t + at)[:, None] * h + head[None, :]
        real = (at < t)[:, None] & inside[None, :]
        later = (at + 1 < t)[:, None] & inside[None, :]
        gate = tl.load(gates + here, mask=real, other=0).to(tl.float64)
        change = tl.load(grad_gates + here, mask=real, other=0).to(tl.float64)
        kept = 1 - gate
        following = 1 - tl.load(gates + here + h, mask=later, other=0).to(tl.float64)
        if STARTS:
            begins = tl.load(starts + row * t + at, mask=at < t, other=0) != 0
            begin_next = tl.load(starts + row * t + at + 1, mask=at + 1 < t, other=0) != 0
            kept = tl.where(begins[:, None], 0.0, kept)
            following = tl.where(begin_next[:, None], 0.0, following)
        passed, added = tl.associative_scan((following, -gate * change), 0, _affine, reverse=True)
        towards = added + passed * carried[None, :]
        before = kept * towards
        tl.store(grad_logits + here, gate * (change + towards), mask=real)
        tl.store(grad_rates + here, -before, mask=real)
        carried = _row_of(towards, at, start)
        lost = _row_of(before, at, start)
    tl.store(grad_initial + row * h + head, lost, mask=inside)


def lerp_forward(values: Tensor, gates: Tensor, initial: Tensor, outputs: Tensor, final: Tensor) -> None:
    """Fill `outputs` (b, t, h, e) with o_t = o_{t-1} + w_t (v_t - o_{t-1}) and `final` (b, h, e) with the last.

    `gates` is (b, t, h), or (b, t, h, e) for a gate per channel.
    """
    b, t, h, e = values.shape
    block, channels = _blocks(t, b * h, e)
    with torch.cuda.device_of(values):
        _lerp_forward[b * h, triton.cdiv(e, channels)](
            values, gates, initial, outputs, final, t, h, e, PER_CHANNEL=gates.ndim == 4, T=block, E=channels
        )


def lerp_backward(
    grad_outputs: Tensor,
    grad_final: Tensor,
    values: Tensor,
    gates: Tensor,
    initial: Tensor,
    outputs: Tensor,
    grad_values: Tensor,
    grad_gates: Tensor,
    grad_initial: Tensor,
) -> None:
    """Fill the last three tensors with the gradients of `lerp_forward`.

    G_t = do_t + (1 - w_{t+1}) G_{t+1}, dv_t = w_t G_t, dw_t = G_t·(v_t - o_{t-1}), d initial = (1 - w_1) G_1.
    """
    b, t, h, e = values.shape
    block, channels = _blocks(t, b * h, e)
    programs, tensors = triton.cdiv(e, channels), (grad_outputs, grad_final, values, gates, initial, outputs)
    # Where several programs share a head, each has its part of the sum over channels.
    shared = gates.ndim == 3 and programs > 1
    parts = gates.new_empty(*gates.shape, programs) if shared else grad_gates
    with torch.cuda.device_of(values):
        _lerp_backward[b * h, programs](
            *tensors, grad_values, parts, grad_initial, t, h, e, PER_CHANNEL=gates.ndim == 4, T=block, E=channels
        )
    if shared:
        torch.sum(parts, -1, out=grad_gates)


def gates_forward(logits: Tensor, initial: Tensor, starts: Tensor, rates: Tensor, gates: Tensor, final: Tensor) -> None:
    """Fill `gates` (b, t, h) with exp(z_t - n_t), n_t = logaddexp(n_{t-1} - f_t, z_t), and `final` (b, h) with the
    last n.

    Logits up to FLOOR / 2 weigh nothing. `starts` (b, t), or (b, 0) for none, says where n restarts; `rates` f are
    (b, t, h), or (b, 0, h) for zeros.
    """
    b, t, h = logits.shape
    block, heads = _blocks(t, b, h, fewest=1)
    given = (logits, initial, starts.view(torch.uint8), rates, gates, final)
    with torch.cuda.device_of(logits):
        _gates_forward[b, triton.cdiv(h, heads)](
            *given, t, h, FLOOR / 2, STARTS=starts.shape[1] > 0, RATES=rates.shape[1] > 0, T=block, H=heads
        )


def gates_backward(
    grad_gates: Tensor,
    grad_final: Tensor,
    gates: Tensor,
    starts: Tensor,
    grad_logits: Tensor,
    grad_initial: Tensor,
    grad_rates: Tensor,
) -> None:
    """Fill the last three tensors with the gradients of `gates_forward`, for which the gates suffice.

    N_t = -w_t dw_t + (1 - w_{t+1}) N_{t+1}, dz_t = w_t (dw_t + N_t), df_t = -(1 - w_t) N_t, d initial = -df_1.
    """
    b, t, h = gates.shape
    block, heads = _blocks(t, b, h, fewest=1)
    given = (grad_gates, grad_final, gates, starts.view(torch.uint8), grad_logits, grad_initial, grad_rates)
    with torch.cuda.device_of(gates):
        _gates_backward[b, triton.cdiv(h, heads)](*given, t, h, STARTS=starts.shape[1] > 0, T=block, H=heads)


def _blocks(t: int, groups: int, channels: int, fewest: int = FEWEST) -> tuple[int, int]:
    """Return the positions and the channels of a block, both powers of two, for that many groups of channels."""
    wide = min(32, triton.next_power_of_2(channels))
    while wide > fewest and groups * triton.cdiv(channels, wide) < ENOUGH:
        wide //= 2
    return min(LONGEST, NUMBERS // wide, max(16, triton.next_power_of_2(t))), wide
