"""Scores of language models against values worked out by hand and straight from their definitions."""

import math

import numpy as np
import pytest

from longspan.errors import UserError
from longspan.tasks.language_modelling.context_length import relative_context_lengths
from longspan.tasks.language_modelling.scores import language_scores, loss_by_position


def rows(*documents: list[float]) -> list[np.ndarray]:
    return [np.array(document, dtype=np.float32) for document in documents]


def test_scores_by_hand() -> None:
    """Two documents of 3 and 0 tokens with their ends: 5 targets, 6 nats, 4 characters of 8 bytes."""
    scores = language_scores(rows([1, 2, 0.5, 0.5], [2]), characters=4, size=8)
    assert scores.loss == pytest.approx(6 / 5)
    assert scores.perplexity == pytest.approx(math.exp(6 / 5))
    assert scores.bits_per_character == pytest.approx(6 / 4 / math.log(2))
    assert scores.bits_per_byte == pytest.approx(6 / 8 / math.log(2))


def test_long_documents_add_up_exactly() -> None:
    """Known failure elsewhere: sums in float32 stand still at some point, and the perplexity of long texts falls."""
    losses = [np.full(30_000_000, 1.1, dtype=np.float32)]
    assert language_scores(losses, 1, 1).loss == pytest.approx(1.1, rel=1e-7)


def test_what_has_no_score() -> None:
    with pytest.raises(UserError, match="at least one document with text"):
        language_scores([], 0, 0)
    with pytest.raises(UserError, match="at least one document with text"):
        language_scores(rows([1.0]), 0, 0)
    with pytest.raises(UserError, match="not finite for 2 of 3 tokens, as after a training run that diverged"):
        language_scores(rows([1, math.nan], [math.inf]), 2, 2)


def test_loss_by_position() -> None:
    found = loss_by_position(rows([1, 2, 4, 5], [3], [7, 4, 6, 9, 9]))
    assert found == [
        {"from": 1, "to": 1, "tokens": 3, "loss": pytest.approx(11 / 3)},
        {"from": 2, "to": 3, "tokens": 4, "loss": pytest.approx(16 / 4)},
        {"from": 4, "to": 5, "tokens": 3, "loss": pytest.approx(23 / 3)},
    ]
    assert loss_by_position([]) == []


def context_length(losses: dict[str, dict[int, list[float]]], model: str, share: float, threshold: float) -> int | None:
    """The definition, step by step; None when the lengths run out."""
    lengths = sorted(losses[model])
    c = lengths.pop(0)
    while lengths:
        longer = lengths.pop(0)
        count = len(losses[model][c])
        b = [min(losses[m][c][t] for m in losses) for t in range(count)]
        hard = sorted(range(count), key=lambda t: b[t], reverse=True)[: math.ceil(share * count)]
        base = math.exp(sum(min(b[t], losses[model][c][t]) for t in hard) / len(hard))
        reached = math.exp(sum(min(b[t], losses[model][longer][t]) for t in hard) / len(hard))
        if (base - reached) / base < threshold:
            return c
        c = longer
    return None


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_context_lengths_follow_their_definition(share: float) -> None:
    random = np.random.default_rng(0)
    lengths = [10 * n for n in range(1, 9)]
    # Three models that stop gaining at different lengths, the third from a worse start, all with noise.
    losses = {
        name: {
            c: (random.gamma(2, 1, 200) * 0.01 + worse + random.gamma(2, 1, 200) / min(c, reach)).astype(np.float32)
            for c in lengths
        }
        for name, reach, worse in (("short", 20, 0.0), ("long", 60, 0.0), ("poor", 60, 1.0))
    }
    found = relative_context_lengths(losses, share=share, threshold=0.01)
    plain = {name: {c: row.tolist() for c, row in by_length.items()} for name, by_length in losses.items()}
    expected = {name: context_length(plain, name, share, 0.01) for name in losses}
    assert {name: None if one.at_least else one.length for name, one in found.items()} == expected
    assert len(set(expected.values())) > 1


def test_a_model_is_measured_by_the_best_of_its_group() -> None:
    """Alone, "poor" gains 39 %; beside "good", which begins where it ends, nothing."""
    poor = {1: np.array([2.0, 2.0]), 2: np.array([1.5, 1.5])}
    good = {1: np.array([1.5, 1.4]), 2: np.array([1.2, 1.4])}
    alone = relative_context_lengths({"poor": poor}, share=1)["poor"]
    assert (alone.length, alone.at_least) == (2, True)
    assert alone.gains == {1: pytest.approx(1 - math.exp(-0.5))}
    together = relative_context_lengths({"poor": poor, "good": good}, share=0.5)
    assert (together["poor"].length, together["poor"].at_least, together["poor"].gains) == (1, False, {1: 0.0})
    # Half of two tokens is the first, where the best short-context loss is 1.5.
    assert together["good"].gains == {1: pytest.approx(1 - math.exp(1.2 - 1.5))}


def test_context_lengths_of_a_group_that_is_none() -> None:
    row = np.zeros(3)
    for losses in ({}, {"a": {1: row}}, {"a": {1: row, 2: row}, "b": {1: row, 3: row}}, {"a": {1: row, 2: row[:2]}}):
        with pytest.raises(UserError, match="the same tokens at the same two or more context lengths"):
            relative_context_lengths(losses)
    with pytest.raises(UserError, match=r"above 0 and at most 1, got 0; 0\.1 is a tenth"):
        relative_context_lengths({"a": {1: row, 2: row}}, share=0)
