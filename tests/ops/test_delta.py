"""The gated delta rule against its naive form, and that against the recurrence of the paper."""

import pytest
import torch
from rounding import assert_within, rounding
from torch import Tensor
from torch.nn.functional import normalize

from longspan.ops import delta
from longspan.ops.fast_weights import plain


def inputs(t: int, rate: float = 1.0) -> list[Tensor]:
    query, key, value = (torch.randn(2, 3, t, width, dtype=torch.float64) for width in (4, 4, 5))
    strength, rates = torch.rand(2, 3, t, dtype=torch.float64), rate * torch.rand(2, 3, t, dtype=torch.float64)
    state = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    return [x.requires_grad_() for x in (query, normalize(key, dim=-1), value, strength, rates, state)]


@pytest.mark.parametrize("t", [1, 2, 31, 32, 70])
@pytest.mark.parametrize("rate", [0.0, 1.0, 1e3])
def test_chunks_are_the_recurrence(t: int, rate: float) -> None:
    tensors = inputs(t, rate)
    found, expected = delta.gated_delta_rule(*tensors), delta.gated_delta_rule_naive(*tensors)
    torch.testing.assert_close(found, expected)
    upstream = [torch.randn_like(x) for x in found]
    got, wanted = (torch.autograd.grad(each, tensors, upstream) for each in (found, expected))
    torch.testing.assert_close(got, wanted)


def test_no_positions_leave_the_state_as_it_was() -> None:
    tensors = inputs(0)
    out, state = delta.gated_delta_rule(*tensors)
    assert out.shape == (2, 3, 0, 5)
    assert state is tensors[-1]


def test_the_gated_delta_rule_as_published() -> None:
    """Yang et al. 2024, equation 10: S_t = S_{t-1} (α_t (I - β_t k_t k_tᵀ)) + β_t v_t k_tᵀ, o_t = S_t q_t, S_0 = 0.

    The authors' naive form (flash-linear-attention, gated_delta_rule) takes log α and divides q by √e.
    """
    query, key, value, strength, rates, _ = (x.detach() for x in inputs(40))
    given = (query / 2, key, value, strength, rates, torch.zeros(2, 3, 4, 5).double())
    out, last = delta.gated_delta_rule(*given)
    for b in range(2):
        for h in range(3):
            memory, one = torch.zeros(5, 4).double(), torch.eye(4).double()
            for t in range(40):
                k, v, beta, alpha = key[b, h, t], value[b, h, t], strength[b, h, t], (-rates[b, h, t]).exp()
                memory = memory @ (alpha * (one - beta * k.outer(k))) + beta * v.outer(k)
                torch.testing.assert_close(out[b, h, t], memory @ (query[b, h, t] * 4**-0.5))
            torch.testing.assert_close(last[b, h], memory.T)


def test_a_new_value_replaces_the_old() -> None:
    """With full strength and no decay, a key holds what was last written to it, and others keep theirs."""
    keys = torch.eye(4)[[0, 1, 2, 1, 3, 0]].view(1, 1, 6, 4)
    values = torch.randn(1, 1, 6, 5)
    ones, zeros = torch.ones(1, 1, 6), torch.zeros(1, 1, 6)
    _, memory = delta.gated_delta_rule(keys, keys, values, ones, zeros, torch.zeros(1, 1, 4, 5))
    torch.testing.assert_close(memory[0, 0], values[0, 0, [5, 3, 2, 4]])


def test_the_same_key_again_and_again_costs_no_digits() -> None:
    """Known failure elsewhere: inverting the triangular matrix by powers of it, whose binomials cancel."""
    keys = torch.ones(1, 1, 500, 4) / 2
    values, ones, zeros = torch.randn(1, 1, 500, 5), torch.ones(1, 1, 500), torch.zeros(1, 1, 500)
    out, _ = delta.gated_delta_rule(keys, keys, values, ones, zeros, torch.zeros(1, 1, 4, 5))
    # What is read is the last value written, after as many roundings as a chunk has positions and a key has numbers.
    assert_within(out, values.double(), rounding(2 * (plain.CHUNK + 4), values.abs().max(), torch.float32))
