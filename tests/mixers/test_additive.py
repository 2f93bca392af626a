"""Fastformer: every option against the paper's order of computation, and the shapes of its parameters."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers import additive

every_option = pytest.mark.parametrize(
    ("interaction", "sharing", "output", "scoring"),
    list(itertools.product(additive.INTERACTIONS, additive.SHARINGS, additive.OUTPUTS, additive.SCORINGS)),
)


def same_gradients(y: Tensor, expected: Tensor, weights: list[Tensor]) -> None:
    got = torch.autograd.grad((y**2).sum(), weights, allow_unused=True)
    wanted = torch.autograd.grad((expected**2).sum(), weights, allow_unused=True)
    for one, other in zip(got, wanted, strict=True):
        torch.testing.assert_close(torch.zeros(()) if one is None else one, torch.zeros(()) if other is None else other)


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@every_option
def test_every_option_agrees_with_the_paper(
    causal: bool, interaction: str, sharing: str, output: str, scoring: str
) -> None:
    options: dict[str, Any] = {"interaction": interaction, "sharing": sharing, "output": output, "scoring": scoring}
    mixer = additive.Additive(12, heads=3, causal=causal, **options).double()
    # Both orders of computation: fewer positions than dim, and more.
    for t in (5, 40):
        x = torch.randn(3, t, 12, dtype=torch.float64, requires_grad=True)
        mask = torch.rand(3, t) > 0.3
        mask[2] = False
        y, expected = mixer(x, mask), additive.naive(mixer, x, mask)
        torch.testing.assert_close(y, expected)
        same_gradients(y, expected, [x, *mixer.parameters()])
    if causal:
        state, parts = mixer.init_state(3), []
        for part in x.detach().split([1, 7, 32], 1):
            part, state = mixer.step(part, state)
            parts.append(part)
        torch.testing.assert_close(torch.cat(parts, 1), mixer(x))


@pytest.mark.slow
@pytest.mark.parametrize("causal", [False, True])
@every_option
def test_cross_attention_agrees_with_the_equations(
    causal: bool, interaction: str, sharing: str, output: str, scoring: str
) -> None:
    options: dict[str, Any] = {"interaction": interaction, "sharing": sharing, "output": output, "scoring": scoring}
    mixer = additive.Additive(12, heads=3, causal=causal, **options).double()
    # Both orders of computation: fewer positions than dim, and more.
    for n, m in ((5, 9), (40, 1)):
        x = torch.randn(4, n, 12, dtype=torch.float64, requires_grad=True)
        context = torch.randn(4, m, 12, dtype=torch.float64, requires_grad=True)
        mask, context_mask = torch.rand(4, n) > 0.3, torch.rand(4, m) > 0.3
        mask[0] = context_mask[0] = True
        mask[1] = context_mask[2] = False
        y = mixer(x, mask, context=context, context_mask=context_mask)
        expected = additive.naive(mixer, x, mask, context, context_mask)
        torch.testing.assert_close(y, expected)
        assert (y[[1, 2]] == 0).all()
        same_gradients(y, expected, [x, context, *mixer.parameters()])
        torch.testing.assert_close(mixer(x, context=context), additive.naive(mixer, x, None, context))
        if not causal:
            torch.testing.assert_close(mixer(x, mask, context=x, context_mask=mask), mixer(x, mask))


def test_a_decoder_is_told_one_vector_per_head() -> None:
    """What the causal form makes of a context is a map of each position alone, the same at all of them."""
    mixer = additive.Additive(8, heads=2, causal=True, bias=False).double()
    x, context = torch.randn(1, 6, 8, dtype=torch.float64), torch.randn(1, 5, 8, dtype=torch.float64)
    state = mixer.init_state(1, context=context)
    assert state.context.shape == (1, 8)
    matrix = mixer.step(torch.eye(8, dtype=torch.float64).unsqueeze(0), state)[0][0]
    torch.testing.assert_close(mixer(x, context=context), x @ matrix)
    # Its global vectors are those that the context itself has in the other form.
    other = additive.Additive(8, heads=2, bias=False).double()
    other.load_state_dict(mixer.state_dict())
    torch.testing.assert_close(mixer(context, context=context), other(context))


def test_the_context_is_summed_up_and_its_padding_is_not() -> None:
    mixer = additive.Additive(8, heads=2)
    x, context = torch.randn(2, 6, 8), torch.randn(2, 5, 8)
    padded = torch.cat((torch.full((2, 3, 8), 1e3), context, torch.full((2, 2, 8), -1e3)), 1)
    context_mask = torch.zeros(2, 10, dtype=torch.bool)
    context_mask[:, 3:8] = True
    y = mixer(x, context=context)
    torch.testing.assert_close(mixer(x, context=padded, context_mask=context_mask), y)
    torch.testing.assert_close(mixer(x, context=context.flip(1)), y)
    assert not torch.allclose(mixer(x, context=context + 1), y)


def test_a_context_is_not_packed() -> None:
    x = torch.randn(1, 3, 8)
    with pytest.raises(UserError, match="packed documents"):
        additive.Additive(8)(x, document_ids=torch.zeros(1, 3, dtype=torch.long), context=x)


def test_the_authors_code() -> None:
    """The published module, written out: scores over all heads, query and value shared, residual query.

    Its score layers have biases, which softmax does not see, and its mask adds -10,000 to the logits of padding.
    """
    torch.manual_seed(0)
    heads, width, t = 2, 4, 20
    mixer = additive.Additive(heads * width, heads=heads, scoring="all-heads").double()
    query_score, key_score = nn.Linear(8, heads).double(), nn.Linear(8, heads).double()
    with torch.no_grad():
        query_score.weight.copy_(mixer.query_score)
        key_score.weight.copy_(mixer.key_score)
    x = torch.randn(2, t, 8, dtype=torch.float64)
    mask = torch.arange(t).expand(2, t) < torch.tensor([[t], [13]])
    added = -1e4 * (~mask).double().unsqueeze(1)

    def pooled(vectors: Tensor, score: nn.Linear) -> Tensor:
        weights = (score(vectors).transpose(1, 2) / width**0.5 + added).softmax(-1)
        return torch.einsum("bht,bthe->bhe", weights, vectors.view(2, t, heads, width)).view(2, 1, 8)

    query, key = mixer.query(x), mixer.key(x)
    pooled_query = pooled(query, query_score)
    pooled_key = pooled(key * pooled_query.repeat(1, t, 1), key_score)
    expected = mixer.output(pooled_key * query) + query
    torch.testing.assert_close(mixer(x, mask)[mask], expected[mask])


def test_fast_transformer_pytorch() -> None:
    """Known failure elsewhere: `fast_transformer_pytorch` weighs p = q̄ ⊙ k by softmax, but adds up the plain keys.

    Its global key thus lacks the factor q̄ (here put in where the values are used: the sum is linear). It also fails
    without a mask, lets padding outputs stand, scores all heads with one vector, and multiplies by a further matrix.
    With these granted, the weights copied across, its attention without rotary positions is ours.
    """
    fast = pytest.importorskip("fast_transformer_pytorch.fast_transformer_pytorch")
    heads, width = 3, 4
    theirs = fast.FastAttention(12, heads=heads, dim_head=width).double()
    theirs.to_out = nn.Identity()
    ours = additive.Additive(12, heads=heads, sharing="none").double()
    with torch.no_grad():
        for name, weight in zip(("query", "key", "value"), theirs.to_qkv.weight.chunk(3), strict=True):
            getattr(ours, name).weight.copy_(weight)
            getattr(ours, name).bias.zero_()
        ours.query_score.copy_(theirs.to_q_attn_logits.weight.expand(heads, -1))
        ours.key_score.copy_(theirs.to_k_attn_logits.weight.expand(heads, -1))
        ours.output.weight.copy_(torch.block_diag(*[theirs.to_r.weight] * heads))
        ours.output.bias.copy_(theirs.to_r.bias.repeat(heads))
    x = torch.randn(2, 15, 12, dtype=torch.float64)
    mask = torch.arange(15).expand(2, 15) < torch.tensor([[15], [9]])
    assert not torch.allclose(theirs(x, mask)[mask], ours(x, mask)[mask], rtol=1e-3)

    query = ours.query(x).unflatten(2, (heads, width)).transpose(1, 2)
    logits = theirs.to_q_attn_logits(query).masked_fill(~mask[:, None, :, None], -torch.inf) / width**0.5
    global_query = (logits.softmax(2) * query).sum(2, keepdim=True)
    theirs.to_r.register_forward_pre_hook(lambda _, inputs: (inputs[0] * global_query,))
    torch.testing.assert_close(theirs(x, mask)[mask], ours(x, mask)[mask])


def test_keys_meet_the_global_query_before_they_are_pooled() -> None:
    """Known failure elsewhere: keys pooled before the global query is applied, so that it cannot choose among them."""
    mixer = additive.Additive(4, heads=1, bias=False, output="r").double()
    x = torch.randn(1, 30, 4, dtype=torch.float64)
    key = mixer.key(x)
    unaware = ((key @ mixer.key_score.T / 2.0).softmax(1).transpose(1, 2) @ key) * x.new_ones(1)
    query = mixer.query(x)
    pooled_query = (query @ mixer.query_score.T / 2.0).softmax(1).transpose(1, 2) @ query
    wrong = mixer.output(pooled_query * unaware * query)
    assert not torch.allclose(mixer(x), wrong, rtol=1e-3)


def test_sharing_saves_parameters() -> None:
    def count(sharing: str) -> int:
        return sum(p.numel() for p in additive.Additive(16, heads=4, sharing=sharing, bias=False).parameters())

    scores = 2 * 16
    assert count("none") == 4 * 256 + scores
    assert count("query-value") == 3 * 256 + scores
    assert count("head-wise") == 256 + 2 * 64 + scores


@pytest.mark.parametrize("option", ["interaction", "sharing", "output", "scoring"])
def test_unknown_values_name_the_known_ones(option: str) -> None:
    options: dict[str, Any] = {option: "nothing"}
    with pytest.raises(UserError, match=f"no additive {option} 'nothing'"):
        additive.Additive(8, **options)


def test_heads_must_divide_dim() -> None:
    with pytest.raises(UserError, match="dim=10 and heads=4"):
        additive.Additive(10, heads=4)


@pytest.mark.parametrize("name", ["additive", "competitive_gate"])
@pytest.mark.parametrize("causal", [False, True])
def test_huge_weights_and_inputs_have_finite_gradients(name: str, causal: bool) -> None:
    """Outputs, products of three projections, are near 1e23 here: of a loss linear in them, as their squares are beyond
    float32 whoever computes them."""
    mixer = mixers.build(name, 16, heads=4, causal=causal)
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.mul_(1e3)
    x = (torch.randn(2, 30, 16) + 1e4).requires_grad_()
    tensors = [x, *mixer.parameters()]
    found = torch.autograd.grad(mixer(x).sum(), tensors, allow_unused=True)
    assert all(gradient is None or gradient.isfinite().all() for gradient in found)
