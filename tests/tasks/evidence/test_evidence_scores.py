"""Scores of found evidence."""

import numpy as np
import pytest

from longspan.errors import UserError
from longspan.tasks.evidence.baselines._retrieval import smoothed
from longspan.tasks.evidence.scores import evidence_scores, first_parts, runs


def test_scores_are_those_counted_by_hand() -> None:
    gold = np.array([0, 1, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0], dtype=bool)
    # Ranked: 1, 3, 2, 5, then the others. A sixth of twelve is two.
    logits = np.array([-9, 4, 2, 3, -9, 1, -9, -9, -9, -9, -9, -9.0])
    scores = evidence_scores([logits], [gold], threshold=0.7)
    assert scores.recall_at_sixth == pytest.approx(1 / 3)
    assert scores.average_precision == pytest.approx((1 + 2 / 3 + 3 / 4) / 3)
    # Marked are 1 to 3 and 5: the first run shares two of three parts with that of 1 to 2.
    assert scores.part_f1 == pytest.approx(2 * 3 / (4 + 3))
    assert scores.span_f1 == 1
    assert scores.exact_span_f1 == pytest.approx(2 * 1 / (2 + 2))
    assert scores.recall_by_share["1"] == 1


def test_questions_count_alike_and_those_without_evidence_do_not() -> None:
    easy, hard = np.array([True] + [False] * 5), np.array([False] * 5 + [True])
    logits = np.arange(6, 0, -1.0)
    scores = evidence_scores([logits, logits, logits], [easy, hard, np.zeros(6, dtype=bool)])
    assert (scores.questions, scores.unanswered) == (2, 1)
    assert scores.recall_at_sixth == 0.5
    with pytest.raises(UserError, match="at least one question"):
        evidence_scores([logits], [np.zeros(6, dtype=bool)])
    with pytest.raises(UserError, match="not finite"):
        evidence_scores([logits * np.nan], [easy])


def test_the_threshold_is_the_best_of_those_tried() -> None:
    draw = np.random.default_rng(0)
    truth = [draw.random(50) < 0.2 for _ in range(5)]
    logits = [draw.normal(size=50) + 2 * gold for gold in truth]
    chosen = evidence_scores(logits, truth)
    others = [evidence_scores(logits, truth, threshold=t).part_f1 for t in np.linspace(0.3, 0.95, 30)]
    # It is chosen among the quantiles of probabilities, not among all numbers.
    assert chosen.part_f1 > max(others) - 0.02
    assert evidence_scores(logits, truth, chosen.threshold).part_f1 == chosen.part_f1


def test_runs_and_first_parts() -> None:
    assert runs(np.array([1, 1, 0, 1, 0, 0, 1], dtype=bool)) == {(0, 1), (3, 3), (6, 6)}
    assert runs(np.zeros(3, dtype=bool)) == set()
    assert [first_parts(parts, 1 / 6) for parts in (1, 6, 7, 592)] == [1, 1, 2, 99]
    assert first_parts(10, 0.3) == 3


def test_smoothing_is_a_gaussian_mean() -> None:
    scores = np.random.default_rng(0).random(20)
    places = np.arange(20)
    weights = np.exp(-0.5 * ((places - places[:, None]) / 2) ** 2)
    kernel = np.exp(-0.5 * (np.arange(-6, 7) / 2) ** 2)
    near = np.where(np.abs(places - places[:, None]) <= 6, weights, 0)
    np.testing.assert_allclose(smoothed(scores, 2.0), near @ scores / kernel.sum(), rtol=1e-12)
    assert smoothed(scores, 0.0) is scores
