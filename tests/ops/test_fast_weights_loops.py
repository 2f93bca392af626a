"""The compiled loops over a matrix per head: against plain operations, in both directions, on several threads."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest
import torch
from kernel_errors import fast_weights_errors
from rounding import assert_within
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from longspan.ops.delta import gated_delta_rule
from longspan.ops.fast_weights import fast_weights, plain
from longspan.ops.fast_weights import numba as loops
from longspan.ops.gated_linear import gated_linear_attention

# The delta rule, and gated linear attention with a rate per head and per channel.
KINDS = ["delta", "head", "channel"]
every_kind = pytest.mark.parametrize("kind", KINDS)


def inputs(kind: str, t: int, e: int, v: int, dtype: torch.dtype = torch.float64) -> list[Any]:
    """Tensors of 2 rows and 4 heads as a mixer has them: heads come after positions in memory."""
    query, key, value = (torch.randn(2, t, 4, width, dtype=dtype).transpose(1, 2) for width in (e, e, v))
    strength = torch.rand(2, t, 4, dtype=dtype).transpose(1, 2) if kind == "delta" else None
    rates = torch.rand(2, t, 4, *[e] * (kind == "channel"), dtype=dtype).transpose(1, 2) / 4
    state = torch.randn(2, 4, e, v, dtype=dtype)
    return [query, torch.nn.functional.normalize(key, dim=-1), value, strength, rates, state]


def results(function: Callable[..., tuple[Tensor, Tensor]], given: list[Any], backwards: int) -> list[Tensor]:
    """Return outputs, last matrices, and the gradients of all inputs."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in given]
    found = function(*leaves, backwards=backwards)
    return [*found, *torch.autograd.grad(found, [x for x in leaves if x is not None], upstream_of(found))]


def upstream_of(found: Iterable[Tensor]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(x.shape, generator=generator).to(x.dtype) for x in found]


@pytest.mark.slow
@every_kind
@pytest.mark.parametrize("backwards", [0, 1, 4])
@pytest.mark.parametrize(("t", "e", "v"), [(2, 1, 1), (17, 3, 40), (65, 16, 16), (130, 20, 5)])
def test_loops_are_the_plain_operations(kind: str, t: int, e: int, v: int, backwards: int) -> None:
    """Lengths are not multiples of a block or a chunk, and widths not of a vector."""
    given = inputs(kind, t, e, v)
    torch.testing.assert_close(results(fast_weights, given, backwards), results(plain.fast_weights, given, backwards))


@every_kind
def test_float32_is_float64_rounded(kind: str) -> None:
    given = inputs(kind, 200, 16, 16, torch.float32)
    exact = results(plain.fast_weights, [None if x is None else x.double() for x in given], 2)
    allowed = fast_weights_errors(given, upstream_of(exact[:2]), 2)
    for found, expected, error in zip(results(fast_weights, given, 2), exact, allowed, strict=True):
        assert_within(found, expected, error)


@every_kind
def test_heads_read_from_the_end(kind: str) -> None:
    given = inputs(kind, 70, 4, 4)
    out, last = fast_weights(*given, backwards=1)
    turned: list[Any] = [None if x is None else x.flip(2) if x is not given[-1] else x for x in given]
    forwards, expected = fast_weights(*given, backwards=0), fast_weights(*turned, backwards=0)
    torch.testing.assert_close(out[:, :3], forwards[0][:, :3])
    torch.testing.assert_close(out[:, 3:], expected[0][:, 3:].flip(2))
    torch.testing.assert_close(last, torch.cat((forwards[1][:, :3], expected[1][:, 3:]), 1))


@every_kind
def test_threads_change_nothing(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Any number of slices gives the same bits, also if they cut rows."""
    given = inputs(kind, 70, 5, 3)
    alone = results(fast_weights, given, 2)
    monkeypatch.setattr(loops, "WORTH_SHARING", 1)
    for threads in (2, 3, 5, 100):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        for one, other in zip(alone, results(fast_weights, given, 2), strict=True):
            assert torch.equal(one, other)


def test_what_was_never_written_is_not_read() -> None:
    """Buffers are reused between heads of different rows: NaN in one row stays there."""
    query, key, value, strength, rates, state = inputs("delta", 100, 5, 3, torch.float32)
    expected = gated_delta_rule(query, key, value, strength, rates, state)[0][1]
    value[0, :, 50:] = np.nan
    found = gated_delta_rule(query, key, value, strength, rates, state)[0]
    assert found[0, :, 50:].isnan().all()
    assert torch.equal(found[1], expected)


def test_memory_for_the_backward_pass_is_a_matrix_per_chunk() -> None:
    query, key, value, _, rates, state = inputs("head", 200, 8, 8)
    for x in (query, key, value, rates, state):
        x.requires_grad_()
    saved: list[Tensor] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        gated_linear_attention(query, key, value, rates, state)
    given = {x.untyped_storage().data_ptr() for x in (query, key, value, rates, state)}
    (borders,) = (x for x in saved if x.numel() and x.untyped_storage().data_ptr() not in given)
    assert borders.shape == (2, -(-200 // plain.CHUNK), 4, 8, 8)


@every_kind
def test_operations_are_counted(kind: str) -> None:
    given = inputs(kind, 30, 3, 5)
    with FlopCounterMode(display=False) as counter:
        fast_weights(*given, backwards=0)
    # Each entry is written and read at each position, and read for the key by the delta rule.
    assert counter.get_total_flops() == 2 * (3 if kind == "delta" else 2) * 2 * 4 * 30 * 3 * 5
