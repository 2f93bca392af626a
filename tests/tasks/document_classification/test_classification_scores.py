"""Classification scores against values worked out by hand, by plain numpy and by torchmetrics."""

import json

import numpy as np
import pytest
import torch
from torchmetrics.functional import classification

from longspan.errors import UserError
from longspan.tasks.base.classes import CALIBRATION_BINS, ClassificationScores, classification_scores

NAMES = ["a", "b", "c"]


def logits_for(predicted, confidence=0.9, classes=3):
    """Logits whose softmax gives `confidence` to the predicted class."""
    probabilities = torch.full((len(predicted), classes), (1 - confidence) / (classes - 1))
    probabilities[torch.arange(len(predicted)), torch.tensor(predicted)] = confidence
    return probabilities.log()


def test_scores_by_hand():
    result = classification_scores(logits_for([0, 0, 1, 1, 2]), torch.tensor([0, 1, 1, 1, 0]), NAMES)
    assert result.accuracy == pytest.approx(3 / 5)
    assert result.confusion == [[1, 0, 1], [1, 2, 0], [0, 0, 0]]
    assert result.per_class["a"] == pytest.approx({"precision": 0.5, "recall": 0.5, "f1": 0.5, "support": 2})
    assert result.per_class["b"] == pytest.approx({"precision": 1, "recall": 2 / 3, "f1": 0.8, "support": 3})
    assert result.per_class["c"] == {"precision": 0.0, "recall": 0.0, "f1": 0.0, "support": 0}
    # "c" is predicted but never true: it counts. A class that never occurs at all does not.
    assert result.macro_f1 == pytest.approx((0.5 + 0.8 + 0) / 3)
    absent = classification_scores(logits_for([0, 1, 1]), torch.tensor([0, 1, 0]), NAMES)
    assert absent.macro_f1 == pytest.approx((2 / 3 + 2 / 3) / 2)


def test_calibration_by_hand():
    # Confidence 0.9 and accuracy 0.5 in one bin; confidence 0.6 and accuracy 1 in another.
    logits = torch.cat([logits_for([0] * 4, 0.9), logits_for([1] * 4, 0.6)])
    labels = torch.tensor([0, 0, 1, 2, 1, 1, 1, 1])
    result = classification_scores(logits, labels, NAMES)
    assert result.calibration_error == pytest.approx(0.5 * 0.4 + 0.5 * 0.4, abs=1e-5)
    low, high = result.reliability
    assert low["count"] == high["count"] == 4
    assert (low["confidence"], low["accuracy"]) == pytest.approx((0.6, 1.0))
    assert high["from"] <= 0.9 < high["to"]


def test_reliability_adds_up_to_the_calibration_error():
    generator = torch.Generator().manual_seed(0)
    logits = 20 * torch.randn(500, 4, generator=generator)  # many confidences round to exactly 1
    labels = torch.randint(4, (500,), generator=generator)
    result = classification_scores(logits, labels, list("abcd"))
    bins = result.reliability
    assert sum(row["count"] for row in bins) == 500
    assert len(bins) <= CALIBRATION_BINS
    by_hand = sum(row["count"] * abs(row["confidence"] - row["accuracy"]) for row in bins) / 500
    assert result.calibration_error == pytest.approx(by_hand, abs=1e-5)
    assert result.accuracy == pytest.approx(float((logits.argmax(-1) == labels).float().mean()))


@pytest.mark.parametrize("seed", range(8))
def test_scores_are_those_of_torchmetrics(seed):
    """Bit for bit, also with classes that do not occur."""
    generator = torch.Generator().manual_seed(seed)
    classes, rows = 2 + seed, 30 * seed + 1
    logits = 3 * torch.randn(rows, classes, generator=generator)
    labels = torch.randint(max(1, classes - 2), (rows,), generator=generator)
    result = classification_scores(logits, labels, [*map(str, range(classes))])
    found, shares = logits.argmax(-1), logits.softmax(-1).clamp(max=1 - torch.finfo(torch.float32).eps)
    assert result.accuracy == float(classification.multiclass_accuracy(found, labels, classes, average="micro"))
    assert result.macro_f1 == float(classification.multiclass_f1_score(found, labels, classes, average="macro"))
    expected = classification.multiclass_calibration_error(shares, labels, classes, CALIBRATION_BINS)
    assert result.calibration_error == float(expected)
    assert result.confusion == classification.multiclass_confusion_matrix(found, labels, classes).tolist()
    for name in ("precision", "recall", "f1_score"):
        measure = getattr(classification, f"multiclass_{name}")
        key = name.removesuffix("_score")
        per_class = [row[key] for row in result.per_class.values()]
        assert per_class == measure(found, labels, classes, average="none").tolist()


def test_takes_numpy_and_half_precision_and_gives_json():
    logits = logits_for([0, 1], classes=2)
    from_numpy = classification_scores(logits.numpy(), np.array([0, 0]), ["no", "yes"])
    assert ClassificationScores.from_dict(json.loads(json.dumps(from_numpy.to_dict()))) == from_numpy
    assert classification_scores(logits.bfloat16(), torch.tensor([0, 0]), ["no", "yes"]).accuracy == 0.5


def test_refuses_what_cannot_be_scored():
    with pytest.raises(UserError, match="at least one labelled document"):
        classification_scores(torch.zeros(0, 2), torch.zeros(0), ["a", "b"])
    with pytest.raises(UserError, match="not finite for 1 of 2 documents"):
        classification_scores(torch.tensor([[0.0, 1.0], [float("nan"), 0.0]]), torch.tensor([0, 1]), ["a", "b"])
    with pytest.raises(ValueError, match=r"expected logits of shape \(2, 3\)"):
        classification_scores(torch.zeros(2, 2), torch.tensor([0, 1]), NAMES)


def test_the_loss_is_the_mean_log_probability_of_the_right_class():
    result = classification_scores(logits_for([0, 1], 0.8), torch.tensor([0, 0]), NAMES)
    assert result.loss == pytest.approx(-(np.log(0.8) + np.log(0.1)) / 2, abs=1e-6)
    assert list(ClassificationScores.shown()) == ["accuracy", "macro_f1", "calibration_error", "loss"]
