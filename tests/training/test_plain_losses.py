"""The learning curve: training and validation loss are the same quantity, whatever training minimises."""

import json
from pathlib import Path

import pytest
import torch

from longspan import recipes, train
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.results import TrainingResult
from longspan.verbs.runs import load_run

# The weights of the start: no dropout, and steps too small to matter.
STILL = [
    "data.test_fraction=0",
    "model.dim=8",
    "model.heads=2",
    "model.depth=1",
    "model.dropout=0.0",
    "model.token_dropout=0.0",
    "model.initializer_range=0.5",
    "training.learning_rate=1e-12",
    "training.num_train_epochs=1",
    # One step reads all, so that its loss is the mean over the same labels as that of validation.
    "training.per_device_train_batch_size=16",
    "training.batch_tokens=0",
]


def losses(result: TrainingResult) -> tuple[float, float]:
    trained = [row["train_loss"] for row in result.history if "train_loss" in row]
    (validated,) = (row["validation_loss"] for row in result.history if "validation_loss" in row)
    assert len(trained) == 1
    return trained[0], validated


@pytest.fixture
def same_documents(tmp_path: Path) -> list[str]:
    """Training and validation data that are the same 16 documents, of a frequent and a rare class."""
    labels = ["often" if n % 8 else "rare" for n in range(16)]
    rows = [{"text": f"w{n % 5} x{n % 3} " * (n % 4 + 1), "label": label} for n, label in enumerate(labels)]
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return [f"data.path={path}", f"data.validation={path}", "data.tokens=words"]


@pytest.mark.parametrize("accumulated", [1, 4])
def test_smoothing_and_class_weights_are_not_in_the_losses_that_are_drawn(
    same_documents: list[str], accumulated: int, tmp_path: Path
) -> None:
    chosen = ["model.wide=false", "data.class_weights=balanced", "training.label_smoothing_factor=0.3"]
    size = [f"training.per_device_train_batch_size={16 // accumulated}"]
    size += [f"training.gradient_accumulation_steps={accumulated}"]
    recipe = recipes.load("quickstart", [*same_documents, *STILL, *chosen, *size])
    found, wanted = losses(train(recipe, run=tmp_path / "run", progress=False))
    # Both are sums of 16 numbers in float32, in other orders.
    assert found == pytest.approx(wanted, rel=1e-5)
    assert found == pytest.approx(wanted, abs=0.01)


def test_label_smoothing_is_refused_where_labels_are_not_single_classes(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("text,label\n" + "".join(f"w{n},{n}.5\n" for n in range(40)), encoding="utf-8")
    recipe = recipes.load("regression", [f"data.path={path}", *STILL, "training.label_smoothing_factor=0.1"])
    with pytest.raises(UserError, match=r"expected training.label_smoothing_factor=0 .* got 0.1; leave it out"):
        train(recipe, run=tmp_path / "run", progress=False)


@pytest.mark.slow
def test_a_wide_part_is_not_in_the_loss_of_what_is_trained(same_documents: list[str], tmp_path: Path) -> None:
    recipe = recipes.load("quickstart", [*same_documents, *STILL, "training.label_smoothing_factor=0.3"])
    result = train(recipe, run=tmp_path / "run", progress=False)
    (row,) = (row for row in result.history if "validation_loss" in row)
    model = load_run(tmp_path / "run").model
    parts = []
    for text in (row["text"] for row in map(json.loads, (tmp_path / "rows.jsonl").read_text().splitlines())):
        inputs = tokenizer_of(load_run(tmp_path / "run").processor)(text, return_tensors="pt")
        parts.append(model(input_ids=inputs["input_ids"]).parts[0, 1])
    labels = torch.tensor([int(n % 8 == 0) for n in range(16)])
    wanted = torch.nn.functional.cross_entropy(torch.stack(parts), labels)
    # Documents are padded in batches, and the sums of float32 are in other orders.
    assert row["validation_loss_as_trained"] == pytest.approx(float(wanted.detach()), rel=1e-4)
    assert row["validation_loss_as_trained"] != row["validation_loss"]
