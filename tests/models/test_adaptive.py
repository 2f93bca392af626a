"""Adaptive embeddings and softmax against the formula, token by token, in float64."""

import itertools
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from longspan import LongspanForCausalLM, UserError
from longspan.models.parts import losses
from longspan.models.parts.adaptive import AdaptiveEmbedding, AdaptiveSoftmax

VOCABULARY, DIM = 30, 8
SHAPES = [
    pytest.param(cutoffs, embedding_dim, div_val, id=f"{cutoffs}-{embedding_dim}-{div_val}")
    for cutoffs in ([], [10], [4, 9, 21])
    for embedding_dim, div_val in ((DIM, 1), (DIM, 2), (12, 1), (12, 2), (4, 1))
]
every_shape = pytest.mark.parametrize(("cutoffs", "embedding_dim", "div_val"), SHAPES)


def softmax(cutoffs: list[int], embedding_dim: int, div_val: int) -> AdaptiveSoftmax:
    made = AdaptiveSoftmax(VOCABULARY, DIM, cutoffs=cutoffs, embedding_dim=embedding_dim, div_val=div_val).double()
    for parameter in made.parameters():
        nn.init.normal_(parameter)
    return made


def embedding(cutoffs: list[int], embedding_dim: int, div_val: int, **options: Any) -> AdaptiveEmbedding:
    shape: dict[str, Any] = {"cutoffs": cutoffs, "embedding_dim": embedding_dim, "div_val": div_val}
    return AdaptiveEmbedding(VOCABULARY, DIM, **shape, **options).double()


def cluster_of(token: int, cutoffs: list[int]) -> tuple[int, int]:
    """The cluster of a token and its number there."""
    bounds = [0, *cutoffs, VOCABULARY]
    number = next(i for i, (first, end) in enumerate(itertools.pairwise(bounds)) if first <= token < end)
    return number, token - bounds[number]


def log_softmax(scores: list[float]) -> list[float]:
    most = max(scores)
    total = math.log(math.fsum(math.exp(score - most) for score in scores)) + most
    return [score - total for score in scores]


def reference(head: AdaptiveSoftmax, hidden: Tensor, cutoffs: list[int]) -> list[float]:
    """log p of every token for one position, from the definition."""
    weights = dict(head.named_parameters())

    def scores(layer: str, number: int) -> list[float]:
        inner = hidden
        if f"projections.{number}.weight" in weights:
            inner = weights[f"projections.{number}.weight"].T @ hidden
        rows = zip(weights[f"{layer}.weight"], weights[f"{layer}.bias"], strict=True)
        return [(row @ inner + bias).item() for row, bias in rows]

    frequent = scores("outputs.0", 0)
    first = log_softmax(frequent + (scores("clusters", 0) if cutoffs else []))
    inside = {number: log_softmax(scores(f"outputs.{number}", number)) for number in range(1, len(cutoffs) + 1)}
    found = []
    for token in range(VOCABULARY):
        number, place = cluster_of(token, cutoffs)
        found.append(first[place] if number == 0 else first[len(frequent) + number - 1] + inside[number][place])
    return found


@every_shape
def test_log_probabilities_are_the_formula_and_sum_to_one(cutoffs: list[int], embedding_dim: int, div_val: int) -> None:
    head, hidden = softmax(cutoffs, embedding_dim, div_val), torch.randn(2, 3, DIM, dtype=torch.float64)
    actual = head.log_probabilities(hidden)
    expected = [[reference(head, position, cutoffs) for position in row] for row in hidden]
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(actual.exp().sum(-1), torch.ones(2, 3, dtype=torch.float64))


@every_shape
def test_losses_come_back_in_token_order(cutoffs: list[int], embedding_dim: int, div_val: int) -> None:
    """Known failure elsewhere: per-token losses returned in the order of the clusters."""
    head = softmax(cutoffs, embedding_dim, div_val)
    # Rare and frequent tokens in turn, and positions without a target.
    targets = torch.arange(VOCABULARY).view(2, -1)[:, torch.randperm(VOCABULARY // 2)]
    targets[1, 3] = -100
    hidden = torch.randn(*targets.shape, DIM, dtype=torch.float64)
    actual = head.nll(hidden, targets)
    for row, column in itertools.product(*map(range, targets.shape)):
        target = int(targets[row, column])
        expected = 0.0 if target < 0 else -reference(head, hidden[row, column], cutoffs)[target]
        assert actual[row, column].item() == pytest.approx(expected, rel=1e-10)


@pytest.mark.parametrize("number", [1, 2, 3])
def test_a_clusters_column_leads_to_its_own_tokens(number: int) -> None:
    """Known failure elsewhere: the head's cluster columns in reverse order between two published code bases."""
    cutoffs = [4, 9, 21]
    head = softmax(cutoffs, DIM, 1)
    assert head.clusters is not None
    with torch.no_grad():
        # Column cutoffs[0] + i - 1 of the head is row i - 1 of `clusters`.
        head.clusters.bias[number - 1] += 100
    first, end = cutoffs[number - 1], [*cutoffs, VOCABULARY][number]
    probabilities = head.log_probabilities(torch.randn(5, DIM, dtype=torch.float64)).exp()
    torch.testing.assert_close(probabilities[:, first:end].sum(1), torch.ones(5, dtype=torch.float64))


@every_shape
def test_embeddings_are_the_definition(cutoffs: list[int], embedding_dim: int, div_val: int) -> None:
    made = embedding(cutoffs, embedding_dim, div_val)
    weights = dict(made.named_parameters())
    vectors = made(torch.arange(VOCABULARY).view(5, 6)).flatten(0, 1)
    for token in range(VOCABULARY):
        number, place = cluster_of(token, cutoffs)
        expected = weights[f"tables.{number}.weight"][place]
        assert len(expected) == embedding_dim // div_val**number
        if div_val > 1:
            expected = weights[f"projections.{number}.weight"] @ expected
        elif embedding_dim != DIM:
            expected = weights["projections.0.weight"] @ expected
        torch.testing.assert_close(vectors[token], expected)


def test_padding_in_any_cluster_stays_zero() -> None:
    for padding in (0, 3, 4, 29):
        vectors = embedding([4, 9], 12, 2, padding_idx=padding)(torch.arange(VOCABULARY))
        assert (vectors[padding] == 0).all()
        assert (vectors != 0).all(1).sum() == VOCABULARY - 1


@pytest.mark.slow
@every_shape
def test_gradients_agree_with_finite_differences(cutoffs: list[int], embedding_dim: int, div_val: int) -> None:
    head, hidden = softmax(cutoffs, embedding_dim, div_val), torch.randn(4, DIM, dtype=torch.float64)
    targets = torch.tensor([29, 0, -100, 8])
    assert torch.autograd.gradcheck(lambda h: head.nll(h, targets), hidden.requires_grad_())


def test_clusters_without_tokens_in_a_batch_have_gradients_too() -> None:
    """Known failure elsewhere: distributed training stops at parameters that a step did not use."""
    made, head = embedding([4, 9], 12, 2), softmax([4, 9], 12, 2)
    tokens = torch.tensor([[0, 1, 2]])
    head.nll(made(tokens), tokens).sum().backward()
    assert all(p.grad is not None for module in (made, head) for p in module.parameters())


def test_parts_of_the_positions_give_the_same_losses_and_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    head, hidden = softmax([4, 9, 21], 12, 2), torch.randn(2, 7, DIM, dtype=torch.float64)
    targets = torch.randint(0, VOCABULARY, (2, 7))
    results = []
    for chunk in (losses.CHUNK, 3 * head.columns):
        monkeypatch.setattr(losses, "CHUNK", chunk)
        head.zero_grad()
        x = hidden.clone().requires_grad_()
        nll = head.nll(x, targets)
        (nll * torch.arange(14).view(2, 7)).sum().backward()
        results.append([nll, x.grad, *(p.grad.clone() for p in head.parameters() if p.grad is not None)])
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_bfloat16_keeps_probabilities_in_float32() -> None:
    head = softmax([4, 9], 12, 2).bfloat16()
    hidden = torch.randn(3, DIM, dtype=torch.bfloat16)
    assert head.log_probabilities(hidden).dtype == torch.float32
    torch.testing.assert_close(head.log_probabilities(hidden).exp().sum(1), torch.ones(3))
    assert head.nll(hidden, torch.tensor([0, 5, 29])).dtype == torch.float32


TIES = [None, [False, False, False], [True, True, True]]


@pytest.mark.slow
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("projections", TIES)
@pytest.mark.parametrize(("embedding_dim", "div_val"), [(16, 1), (16, 2), (24, 1), (24, 2)])
def test_ties_survive_saving(
    tied: bool, projections: list[bool] | None, embedding_dim: int, div_val: int, tmp_path: Any
) -> None:
    config = LongspanForCausalLM.configured(
        vocab_size=30,
        dim=16,
        heads=2,
        depth=1,
        causal=True,
        cutoffs=[4, 9],
        tie_word_embeddings=tied,
        tie_projections=projections,
        embedding_dim=embedding_dim,
        div_val=div_val,
    )
    model = LongspanForCausalLM(config).eval()
    model.save_pretrained(tmp_path)
    loaded = LongspanForCausalLM.from_pretrained(tmp_path).eval()
    ids = torch.arange(30).unsqueeze(0)
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    for made in (model, loaded):
        table, head = made.longspan.embeddings.table, made.lm_head
        assert isinstance(table, AdaptiveEmbedding)
        assert isinstance(head, AdaptiveSoftmax)
        assert all(
            (output.weight is vectors.weight) == tied
            for output, vectors in zip(head.outputs, table.tables, strict=True)
        )
        assert len(head.projections) == (0 if embedding_dim == 16 and div_val == 1 else 3)
        for number, projection in enumerate(head.projections):
            same = projection.weight is table.projections[number if div_val > 1 else 0].weight
            assert same == (projections or [False, True, True])[number]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"cutoffs": [10, 10]}, "increasing cutoffs between 0 and the vocabulary's 30 tokens"),
        ({"cutoffs": [30]}, "increasing cutoffs"),
        ({"cutoffs": [0, 5]}, "increasing cutoffs"),
        ({"div_val": 2}, "div_val needs clusters"),
        ({"tie_projections": [True]}, "tie_projections needs clusters"),
        ({"cutoffs": [5], "tie_projections": [True]}, "one tie_projections for each of 2 clusters, got 1"),
        ({"cutoffs": [5, 9, 15], "div_val": 4}, "at least one number per word vector"),
        ({"cutoffs": [5], "div_val": 0}, "div_val must be at least 1"),
    ],
)
def test_mistakes_in_the_configuration_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        LongspanForCausalLM.configured(vocab_size=30, dim=16, heads=2, **changes)


def test_adaptive_embeddings_are_not_resized() -> None:
    model = LongspanForCausalLM(
        LongspanForCausalLM.configured(vocab_size=30, dim=16, heads=2, depth=1, causal=True, cutoffs=[5])
    )
    with pytest.raises(UserError, match="plain embeddings to resize"):
        model.resize_token_embeddings(40)


@pytest.mark.parametrize(("vocab_size", "expected"), [(8000, [2000]), (7999, None)])
def test_clusters_are_chosen_for_large_vocabularies(vocab_size: int, expected: list[int] | None, tmp_path: Any) -> None:
    """What was chosen is what is saved, so a later change of the rule does not change a model."""
    config = LongspanForCausalLM.configured(vocab_size=vocab_size, dim=8, heads=2, causal=True, cutoffs="auto")
    assert config.embeddings.cutoffs == expected
    assert isinstance(LongspanForCausalLM(config).lm_head, AdaptiveSoftmax) is (expected is not None)
    config.save_pretrained(tmp_path)
    assert type(config).from_pretrained(tmp_path).embeddings.cutoffs == expected
    with pytest.raises(UserError, match=r"expected cutoffs to be numbers of tokens such as \[2000\], or auto, got 'x'"):
        LongspanForCausalLM.configured(vocab_size=vocab_size, dim=8, heads=2, causal=True, cutoffs="x")
