"""Gated linear attention against its naive form, and that against the recurrences of the papers."""

import pytest
import torch
from torch import Tensor

from longspan.ops import gated_linear

per_channel = pytest.mark.parametrize("per_channel", [False, True])


def inputs(t: int, per_channel: bool, rate: float = 1.0) -> list[Tensor]:
    query, key, value = (torch.randn(2, 3, t, width, dtype=torch.float64) for width in (4, 4, 5))
    rates = rate * torch.rand(2, 3, t, *[4] * per_channel, dtype=torch.float64)
    state = torch.randn(2, 3, 4, 5, dtype=torch.float64)
    return [x.requires_grad_() for x in (query, key, value, rates, state)]


@per_channel
@pytest.mark.parametrize("t", [1, 8, 31, 70])
@pytest.mark.parametrize("rate", [1e-3, 1.0, 1e3])
def test_chunks_are_the_recurrence(per_channel: bool, t: int, rate: float) -> None:
    tensors = inputs(t, per_channel, rate)
    found = gated_linear.gated_linear_attention(*tensors)
    expected = gated_linear.gated_linear_attention_naive(*tensors)
    torch.testing.assert_close(found, expected)
    upstream = [torch.randn_like(x) for x in found]
    got, wanted = (torch.autograd.grad(each, tensors, upstream) for each in (found, expected))
    torch.testing.assert_close(got, wanted)


def test_no_positions_leave_the_state_as_it_was() -> None:
    tensors = inputs(0, False)
    out, state = gated_linear.gated_linear_attention(*tensors)
    assert out.shape == (2, 3, 0, 5)
    assert state is tensors[-1]


@per_channel
def test_rates_of_any_size_stay_finite(per_channel: bool) -> None:
    """Known failure elsewhere: factors exp(G) of the keys of a chunk overflow where gates are small."""
    tensors = [x.detach().float().requires_grad_() for x in inputs(70, per_channel)]
    tensors[3] = (1e6 * tensors[3].detach()).requires_grad_()
    out, _ = gated_linear.gated_linear_attention(*tensors)
    # Everything is forgotten at once: what is read is the position's own value.
    query, key, value = tensors[:3]
    torch.testing.assert_close(out[:, :, 1:], ((query * key).sum(-1, keepdim=True) * value)[:, :, 1:])
    out.sum().backward()
    assert all(x.grad is not None and x.grad.isfinite().all() for x in tensors)


def test_gated_linear_attention_as_published() -> None:
    """Yang et al. 2024, equation 3: S_t = diag(α_t) S_{t-1} + k_tᵀ v_t, o_t = q_t S_t, of row vectors, from S_0 = 0.

    The authors' naive form (flash-linear-attention, gla) takes log α and divides q by √e.
    """
    query, key, value, rates, _ = (x.detach() for x in inputs(40, True))
    out, last = gated_linear.gated_linear_attention(query / 2, key, value, rates, torch.zeros(2, 3, 4, 5).double())
    for b in range(2):
        for h in range(3):
            memory = torch.zeros(4, 5, dtype=torch.float64)
            for t in range(40):
                log_gate = -rates[b, h, t]
                memory = torch.diag(log_gate.exp()) @ memory + key[b, h, t][:, None] @ value[b, h, t][None]
                torch.testing.assert_close(out[b, h, t], query[b, h, t] * 4**-0.5 @ memory)
            torch.testing.assert_close(last[b, h], memory)


def test_retention_as_published() -> None:
    """Sun et al. 2023, equations 5 and 6: the parallel form (Q Kᵀ ⊙ D) V, D_nm = γ^(n-m) for n >= m."""
    query, key, value, _, _ = (x.detach() for x in inputs(40, False))
    gamma = 1 - 2.0 ** (-5 - torch.arange(3).double())
    rates = -gamma.log().view(1, 3, 1).expand(2, 3, 40)
    out, _ = gated_linear.gated_linear_attention(query, key, value, rates, torch.zeros(2, 3, 4, 5).double())
    apart = torch.arange(40).view(-1, 1) - torch.arange(40)
    decay = torch.where(apart >= 0, gamma.view(3, 1, 1) ** apart.clamp_min(0), 0)
    torch.testing.assert_close(out, (query @ key.mT * decay) @ value)
