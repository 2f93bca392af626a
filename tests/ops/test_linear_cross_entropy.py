"""Cross-entropy of an affine map: against the formula in float64, for all gradients that can be asked for."""

import pytest
import torch
from rounding import assert_within, rounding
from torch import Tensor

from longspan.ops import linear_cross_entropy as module
from longspan.ops.linear_cross_entropy import linear_cross_entropy

IGNORED = -100
ROWS, WIDTH, OUTPUTS = 11, 5, 9


@pytest.fixture(autouse=True)
def _few_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_LOGITS", 4 * OUTPUTS)
    monkeypatch.setattr(module, "_ROWS", 1)


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    targets = torch.randint(0, OUTPUTS, (ROWS,))
    targets[[0, 6]] = IGNORED
    shapes = ((ROWS, WIDTH), (OUTPUTS, WIDTH), (OUTPUTS,))
    hidden, weight, bias = (torch.randn(shape).to(dtype).requires_grad_() for shape in shapes)
    return hidden, weight, bias, targets


def formula(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor) -> Tensor:
    logits = hidden.double() @ weight.double().mT + (0 if bias is None else bias.double())
    found = logits.logsumexp(1) - logits.gather(1, targets.clamp_min(0)[:, None])[:, 0]
    return found * (targets != IGNORED)


@pytest.mark.parametrize("upstream", [torch.ones(ROWS), torch.arange(ROWS)])
@pytest.mark.parametrize("with_bias", [True, False])
def test_losses_and_gradients_are_those_of_the_formula(upstream: Tensor, with_bias: bool) -> None:
    hidden, weight, bias, targets = inputs()
    leaves = (hidden, weight, bias) if with_bias else (hidden, weight)
    given = bias if with_bias else None
    found, expected = (
        linear_cross_entropy(hidden, weight, given, targets, IGNORED),
        formula(hidden, weight, given, targets),
    )
    torch.testing.assert_close(found, expected)
    gradients = torch.autograd.grad((found * upstream).sum() / 3, leaves)
    torch.testing.assert_close(gradients, torch.autograd.grad((expected * upstream).sum() / 3, leaves))


def test_gradients_of_gradients() -> None:
    hidden, weight, bias, targets = inputs()

    def losses(*leaves: Tensor) -> Tensor:
        return linear_cross_entropy(leaves[0], leaves[1], leaves[2], targets, IGNORED)

    assert torch.autograd.gradgradcheck(losses, (hidden, weight, bias))


@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_what_is_frozen_has_no_gradient(frozen: int) -> None:
    hidden, weight, bias, targets = inputs()
    leaves = (hidden, weight, bias)
    leaves[frozen].requires_grad_(False)
    others = [each.detach().clone().requires_grad_(each.requires_grad) for each in leaves]
    linear_cross_entropy(hidden, weight, bias, targets, IGNORED).sum().backward()
    formula(others[0], others[1], others[2], targets).sum().backward()
    for leaf, other in zip(leaves, others, strict=True):
        assert (leaf.grad is None) == (not leaf.requires_grad)
        torch.testing.assert_close(leaf.grad, other.grad)


def test_targets_that_are_as_good_as_impossible() -> None:
    hidden, weight, bias, targets = inputs(torch.float32)
    # exp(-200) is 0 in float32: its logarithm would be infinite.
    found = linear_cross_entropy(
        hidden, weight, bias - 200 * torch.eye(OUTPUTS)[3], torch.full_like(targets, 3), IGNORED
    )
    assert (found > 190).all()
    assert found.isfinite().all()


def test_half_precision_and_autocast() -> None:
    hidden, weight, bias, targets = inputs(torch.bfloat16)
    found = linear_cross_entropy(hidden, weight, bias, targets, IGNORED)
    assert found.dtype == torch.float32
    # The loss is the difference of two numbers of the size of logits, which are rounded to bfloat16.
    logits = (hidden.double().abs() @ weight.double().abs().mT + bias.double().abs()).max().detach()
    assert_within(found, formula(hidden, weight, bias, targets), rounding(2, logits, torch.bfloat16))
    hidden, weight, bias, targets = inputs(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        found = linear_cross_entropy(hidden, weight, bias, targets, IGNORED)
    # Inputs are rounded, too.
    assert_within(found, formula(hidden, weight, bias, targets), rounding(2 * 3, logits, torch.bfloat16))
    found.sum().backward()
    assert weight.grad is not None
    assert weight.grad.dtype == torch.float32


def test_nothing_to_predict() -> None:
    hidden, weight, bias, targets = inputs()
    ignored = torch.full_like(targets, IGNORED)
    losses = linear_cross_entropy(hidden, weight, bias, ignored, IGNORED)
    assert not losses.any()
    assert not torch.autograd.grad(losses.sum(), weight)[0].any()
    assert linear_cross_entropy(hidden[:0], weight, bias, targets[:0], IGNORED).shape == (0,)


def test_a_hidden_state_that_comes_from_the_same_weight() -> None:
    """As with tied embeddings: the gradient ends at the hidden state, and what is before it is kept."""
    _, weight, _, targets = inputs()
    found = []
    for losses in (linear_cross_entropy, formula):
        hidden = torch.nn.functional.embedding(torch.arange(ROWS) % OUTPUTS, weight).tanh()
        given = (IGNORED,) if losses is linear_cross_entropy else ()
        total = (losses(hidden, weight, None, targets, *given) * torch.arange(ROWS)).sum()
        found.append(torch.autograd.grad(total, weight)[0])
    torch.testing.assert_close(*found)
