"""Scores of several labels per document, against the formulas written out, and the thresholds that go with them."""

import json

import numpy as np
import pytest
import torch
from torchmetrics.functional.classification import multilabel_average_precision, multilabel_f1_score

from longspan.errors import UserError
from longspan.tasks.multi_label_classification.scores import (
    MultiLabelScores,
    best_thresholds,
    multi_label_scores,
    precision_recall,
    probabilities,
)


def average_precision(logits: list[float], truth: list[int]) -> float:
    """The formula: at each different logit, the precision of all from it on, times the gain in recall."""
    total, before = 0.0, 0.0
    for cut in sorted(set(logits), reverse=True):
        taken = [has for logit, has in zip(logits, truth, strict=True) if logit >= cut]
        recall = sum(taken) / sum(truth)
        total += sum(taken) / len(taken) * (recall - before)
        before = recall
    return total


def example(n: int = 60, k: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    # Rounded, so that some logits are equal.
    logits = (3 * torch.randn(n, k, generator=generator)).round(decimals=0)
    return logits, (torch.rand(n, k, generator=generator) < logits.sigmoid() * 0.5 + 0.1).float()


def test_average_precision_is_the_formula_with_equal_logits_too() -> None:
    logits, targets = example()
    scores = multi_label_scores(logits, targets, list("abcd"), [0.5] * 4)
    found = [row["average_precision"] for row in scores.per_label.values()]
    for i in range(4):
        assert found[i] == pytest.approx(average_precision(logits[:, i].tolist(), targets[:, i].tolist()), abs=1e-12)
    theirs = multilabel_average_precision(logits.sigmoid(), targets.long(), 4, average="none")
    # In float32.
    assert found == pytest.approx(theirs.tolist(), abs=1e-6)
    assert scores.mean_average_precision == pytest.approx(np.mean(found))


def test_certain_logits_are_told_apart() -> None:
    """In float32, the probabilities of both are exactly 1."""
    logits = torch.tensor([[40.0], [30.0], [20.0]])
    scores = multi_label_scores(logits, torch.tensor([[1.0], [0.0], [0.0]]), ["a"], [0.5])
    assert scores.mean_average_precision == 1
    assert probabilities(torch.tensor([30.0]))[0] < probabilities(torch.tensor([31.0]))[0] < 1


def test_scores_at_thresholds_by_hand() -> None:
    logits = torch.tensor([[2.0, -2.0, -3.0], [2.0, 2.0, -3.0], [-2.0, -2.0, -3.0], [0.0, 2.0, -3.0]])
    targets = torch.tensor([[1.0, 0, 0], [0, 1, 0], [0, 1, 0], [1, 1, 0]])
    scores = multi_label_scores(logits, targets, ["a", "b", "c"], [0.6, 0.5, 0.5])
    a, b, c = scores.per_label.values()
    assert (a["precision"], a["recall"], a["f1"], a["support"], a["threshold"]) == (0.5, 0.5, 0.5, 2, 0.6)
    assert (b["precision"], b["recall"], b["f1"]) == pytest.approx((1, 2 / 3, 0.8))
    assert c == {"precision": 0, "recall": 0, "f1": 0, "average_precision": 0, "support": 0, "threshold": 0.5}
    # "c" neither occurs nor is predicted: it counts in no mean over labels.
    assert scores.macro_f1 == pytest.approx((0.5 + 0.8) / 2)
    assert scores.mean_average_precision == pytest.approx((a["average_precision"] + b["average_precision"]) / 2)
    assert scores.micro_f1 == pytest.approx(2 * 3 / (4 + 5))
    assert scores.subset_accuracy == 0.25
    # A probability that is the threshold gives the label.
    assert multi_label_scores(logits, targets, ["a", "b", "c"], [0.5] * 3).per_label["a"]["recall"] == 1


def test_f1_is_that_of_torchmetrics() -> None:
    logits, targets = example()
    scores = multi_label_scores(logits, targets, list("abcd"), [0.5] * 4)
    # At exactly 0.5 they do not give the label.
    shares, truth = (logits + 1e-3).sigmoid(), targets.long()
    assert scores.micro_f1 == pytest.approx(float(multilabel_f1_score(shares, truth, 4, average="micro")), abs=1e-6)
    assert scores.macro_f1 == pytest.approx(float(multilabel_f1_score(shares, truth, 4, average="macro")), abs=1e-6)
    expected = torch.nn.functional.binary_cross_entropy(logits.double().sigmoid(), targets.double())
    assert scores.loss == pytest.approx(float(expected), abs=1e-12)


def test_thresholds_have_the_best_f1_of_a_label_and_of_all_labels() -> None:
    logits, targets = example(200)
    chosen = best_thresholds(logits, targets)

    def f1(label: int, cut: float) -> float:
        given, truth = probabilities(logits) >= cut, targets > 0.5
        # All labels together count as 200 documents, as many as there are.
        weights = torch.full((4,), 0.25, dtype=torch.float64)
        weights[label] += 1
        right, decided = (given & truth).sum(0).double(), (given.sum(0) + truth.sum(0)).double()
        return float(2 * right @ weights / (decided @ weights))

    for label, cut in enumerate(chosen):
        assert f1(label, cut) >= max(f1(label, other) for other in np.linspace(0, 1, 101)) - 1e-9
        # Between two documents, not at one.
        assert (probabilities(logits[:, label]) - cut).abs().min() > 1e-5


def test_a_label_of_few_documents_has_the_threshold_of_all() -> None:
    """Three documents with each label say little: chance would put the thresholds far apart."""
    generator = torch.Generator().manual_seed(0)
    targets = (torch.rand(30, 8, generator=generator) < 0.1).float()
    logits = 2 * targets - 2 + torch.randn(30, 8, generator=generator)
    alone = [best_thresholds(logits[:, [label]], targets[:, [label]])[0] for label in range(8)]
    together = best_thresholds(logits, targets)
    assert np.std(together) < np.std(alone) / 2


@pytest.mark.parametrize("truth", [[0.0, 0.0, 0.0], [1.0, 1.0, 1.0]])
def test_where_nothing_can_be_told_the_threshold_is_a_half(truth: list[float]) -> None:
    assert best_thresholds(torch.tensor([[3.0], [1.0], [-2.0]]), torch.tensor(truth).unsqueeze(1)) == [0.5]


def test_of_equally_good_thresholds_the_one_nearest_to_a_half_is_taken() -> None:
    # F1 is 2/3 from either document on; with all three it is less.
    logits, targets = torch.tensor([[6.0], [4.0], [-5.0], [-7.0]]), torch.tensor([[1.0], [0.0], [0.0], [1.0]])
    (threshold,) = best_thresholds(logits, targets)
    assert threshold == pytest.approx(torch.tensor(5.0).sigmoid().item())
    # Perfectly told apart: midway between the logits, which are 8 and -2.
    (threshold,) = best_thresholds(torch.tensor([[8.0], [-2.0]]), torch.tensor([[1.0], [0.0]]))
    assert threshold == pytest.approx(torch.tensor(3.0).sigmoid().item())


def test_the_curve_takes_equal_logits_together() -> None:
    curve = precision_recall(np.array([1.0, 2.0, 2.0, 0.0]), np.array([True, True, False, False]))
    assert curve.logits.tolist() == [2, 1, 0]
    assert curve.precision.tolist() == pytest.approx([1 / 2, 2 / 3, 1 / 2])
    assert curve.recall.tolist() == [0.5, 1, 1]
    assert curve.average_precision == pytest.approx(0.5 * 0.5 + 0.5 * 2 / 3)


def test_scores_survive_json_and_refuse_what_cannot_be_scored() -> None:
    logits, targets = example()
    scores = multi_label_scores(logits.bfloat16(), targets, list("abcd"), [0.5] * 4)
    assert MultiLabelScores.from_dict(json.loads(json.dumps(scores.to_dict()))) == scores
    assert MultiLabelScores.headline() == "mean_average_precision"
    nothing = multi_label_scores(logits, torch.zeros_like(targets), list("abcd"), [1.0] * 4)
    assert (nothing.mean_average_precision, nothing.micro_f1, nothing.macro_f1) == (0, 0, 0)
    assert nothing.subset_accuracy == 1
    with pytest.raises(UserError, match="at least one labelled document"):
        multi_label_scores(torch.zeros(0, 2), torch.zeros(0, 2), ["a", "b"], [0.5] * 2)
    with pytest.raises(UserError, match="not finite for 1 of 1 documents"):
        multi_label_scores(torch.tensor([[0.0, torch.nan]]), torch.zeros(1, 2), ["a", "b"], [0.5] * 2)
