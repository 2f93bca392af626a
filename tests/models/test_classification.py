"""The document classifier: what its loss is of, against transformers' own, and labels that do not fit."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers.loss.loss_utils import ForSequenceClassificationLoss

from longspan import LongspanConfig, LongspanForSequenceClassification, UserError

ROWS = 5


def build(num_labels: int = 3, **changes: Any) -> LongspanForSequenceClassification:
    torch.manual_seed(1)
    settings: dict[str, Any] = {"vocab_size": 30, "dim": 8, "heads": 2, "depth": 1, "dropout": 0.0}
    settings |= {"num_labels": num_labels, "initializer_range": 0.5}
    return LongspanForSequenceClassification(LongspanForSequenceClassification.configured(**settings | changes)).eval()


def ids(rows: int = ROWS) -> Tensor:
    return torch.randint(1, 30, (rows, 7), generator=torch.Generator().manual_seed(4))


LABELS: dict[str, tuple[int, Any, str]] = {
    "integers": (3, torch.tensor([0, 2, 1, -100, 2]), "single_label_classification"),
    "int32": (3, torch.tensor([0, 2, 1, 1, 2], dtype=torch.int32), "single_label_classification"),
    "zeros and ones": (3, torch.tensor([[0.0, 1, 1]] * ROWS), "multi_label_classification"),
    "shares": (3, torch.rand(ROWS, 3), "multi_label_classification"),
    "a number": (1, torch.randn(ROWS), "regression"),
    "a column": (1, torch.randn(ROWS, 1), "regression"),
    "an integer": (1, torch.arange(ROWS), "regression"),
}


@pytest.mark.parametrize("configured", [False, True])
@pytest.mark.parametrize("name", LABELS)
def test_losses_and_gradients_are_transformers_own(name: str, configured: bool) -> None:
    num_labels, labels, problem = LABELS[name]
    model = build(num_labels, problem_type=problem if configured else None)
    output = model(ids(), labels=labels)
    (gradient,) = torch.autograd.grad(output.loss, output.logits, retain_graph=True)
    config = LongspanConfig(num_labels=num_labels)
    if configured:
        config.problem_type = problem
    # Its cross-entropy and squared error take no other integers.
    theirs = labels.long() if problem == "single_label_classification" else labels.float()
    expected = ForSequenceClassificationLoss(theirs, output.logits, config)
    torch.testing.assert_close(output.loss, expected)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, output.logits)[0])
    assert model.config.problem_type == config.problem_type == problem


def test_several_numbers_are_regressed_when_configured() -> None:
    model, labels = build(3, problem_type="regression"), torch.randn(ROWS, 3)
    output = model(ids(), labels=labels)
    torch.testing.assert_close(output.loss, (output.logits - labels).square().mean())


def test_integers_and_booleans_are_multiple_labels_when_configured() -> None:
    labels = torch.tensor([[0, 1, 1]] * ROWS)
    losses = [
        build(problem_type="multi_label_classification")(ids(), labels=given).loss
        for given in (labels, labels.bool(), labels.float())
    ]
    assert losses[0] == losses[1] == losses[2]
    model = build()
    model(ids(), labels=labels.bool())
    assert model.config.problem_type == "multi_label_classification"


def test_unknown_labels_count_for_nothing() -> None:
    model, labels = build(), torch.tensor([[0.0, 1, -100], [-100, -100, -100], [1, 0, 1], [1, -100, 0], [0, 0, 0]])
    output = model(ids(), labels=labels)
    known = labels >= 0
    expected = torch.nn.functional.binary_cross_entropy_with_logits(output.logits[known], labels[known])
    torch.testing.assert_close(output.loss, expected)
    for nothing in (torch.full((ROWS, 3), -100.0), torch.full((ROWS,), -100)):
        loss = build()(ids(), labels=nothing).loss
        assert loss == 0
        loss.backward()


def test_one_document_is_not_squeezed_away() -> None:
    output = build(1)(ids(1), labels=torch.tensor([2.0]))
    torch.testing.assert_close(output.loss, (output.logits[0, 0] - 2).square())


def test_losses_are_in_float32_at_least() -> None:
    for num_labels, labels, _ in LABELS.values():
        assert build(num_labels).bfloat16()(ids(), labels=labels).loss.dtype == torch.float32
        assert build(num_labels).double()(ids(), labels=labels).loss.dtype == torch.float64


@pytest.mark.parametrize(
    ("num_labels", "problem", "labels"),
    [
        (3, None, torch.tensor([[0, 1, 1]] * ROWS)),
        (3, None, torch.rand(ROWS)),
        (3, None, torch.zeros(ROWS - 1, dtype=torch.long)),
        (3, "single_label_classification", torch.rand(ROWS)),
        (3, "single_label_classification", torch.rand(ROWS, 3)),
        (3, "multi_label_classification", torch.zeros(ROWS, dtype=torch.long)),
        (3, "multi_label_classification", torch.rand(ROWS, 4)),
        (3, "regression", torch.rand(ROWS)),
        (1, None, torch.rand(ROWS, 2)),
        (1, "regression", torch.rand(ROWS - 1)),
    ],
)
def test_labels_that_do_not_fit_are_named(num_labels: int, problem: str | None, labels: Tensor) -> None:
    model = build(num_labels, problem_type=problem)
    with pytest.raises(
        UserError, match=r"expected labels as \w+ of shape \(.*\) with problem_type=.*, got torch\."
    ) as told:
        model(ids(), labels=labels)
    assert str(tuple(labels.shape)) in str(told.value)
    assert model.config.problem_type == problem


def test_only_single_labels_are_smoothed() -> None:
    model = build(label_smoothing=0.1)
    with pytest.raises(UserError, match="label_smoothing is for single labels"):
        model(ids(), labels=torch.rand(ROWS, 3))
    labels = torch.tensor([0, 2, 1, -100, 2])
    output = model.train()(ids(), labels=labels)
    expected = torch.nn.functional.cross_entropy(output.logits, labels, label_smoothing=0.1)
    torch.testing.assert_close(output.loss, expected)


def test_class_weights_multiply_the_training_loss_of_each_document() -> None:
    labels, weights = torch.tensor([0, 2, 1, -100, 2]), [0.5, 2.0, 3.0]
    model = build(class_weights=weights, label_smoothing=0.1).train()
    output = model(ids(), labels=labels)
    each = torch.nn.functional.cross_entropy(
        output.logits, labels, reduction="none", ignore_index=-100, label_smoothing=0.1
    )
    weighted = each * torch.tensor(weights)[labels.clamp_min(0)]
    # Divided by the number of labels, not by the sum of their weights: a document's gradient does not depend on others.
    torch.testing.assert_close(output.loss, weighted.sum() / 4)
    whole = model(ids(), labels=labels, num_items_in_batch=4).loss
    parts = [model(ids()[part], labels=labels[part], num_items_in_batch=4).loss for part in (slice(0, 2), slice(2, 5))]
    torch.testing.assert_close(sum(parts), whole)
    plain = build(label_smoothing=0.1)
    plain.load_state_dict(model.state_dict())
    torch.testing.assert_close(model.eval()(ids(), labels=labels).loss, plain(ids(), labels=labels).loss)


def test_regression_has_the_unit_of_its_labels() -> None:
    labels = torch.tensor([990.0, 1000, 1030, 1010, 970])
    model = build(1, problem_type="regression", target_mean=1000.0, target_scale=20.0)
    plain = build(1, problem_type="regression")
    plain.load_state_dict(model.state_dict())
    found, standard = model(ids(), labels=labels), plain(ids(), labels=(labels - 1000) / 20)
    torch.testing.assert_close(found.logits, standard.logits * 20 + 1000)
    torch.testing.assert_close(found.loss, standard.loss)
    # In half precision, 1,010 would be 1,008.
    assert model.bfloat16()(ids()).logits.dtype == torch.float32


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"class_weights": [1.0]}, "class_weights must have a number for each of 3 labels, got 1; give one for each"),
        ({"class_weights": [1.0, -1.0, 1.0]}, "class_weights must be at least 0 and finite, got"),
        ({"class_weights": [1.0, float("nan"), 1.0]}, "class_weights must be at least 0 and finite"),
        ({"thresholds": [0.5, 0.5, 1.5]}, "thresholds must be from 0 to 1, got"),
        ({"target_scale": 0.0, "problem_type": "regression"}, "target_scale must be above 0 and finite, got 0.0"),
        ({"target_mean": float("inf"), "problem_type": "regression"}, "target_mean must be finite, got inf"),
        ({"target_mean": 3.0}, "target_mean and target_scale are for regression, got problem_type=None"),
    ],
)
def test_what_the_data_decide_is_checked_when_a_model_is_loaded(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(**settings)
