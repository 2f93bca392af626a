"""Training and scoring in batches by length."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from torch import Tensor
from transformers import TrainingArguments

from longspan import LongspanConfig, LongspanForSequenceClassification
from longspan.data.batches.streams import Stream, pad
from longspan.errors import UserError
from longspan.models.parts.losses import IGNORED
from longspan.results.scores import Scores, score
from longspan.training.lengths import Collator, LengthTrainer, _Share, outputs, scoring_batches

LENGTHS = [3, 9, 1, 6, 2, 5, 9]
STREAMS = {"input_ids": Stream(mask="attention_mask")}


@dataclass(frozen=True)
class Shares(Scores):
    rows: list[int]
    accuracy: float = score("accuracy", higher_is_better=True, share=True)
    loss: float = score("loss", higher_is_better=False)


Measure = Callable[[Tensor, Tensor], Shares]


def documents(lengths: list[int] = LENGTHS) -> Dataset:
    random = np.random.default_rng(0)
    ids = [random.integers(1, 20, size=length).tolist() for length in lengths]
    return Dataset.from_dict(
        {"input_ids": ids, "length": lengths, "labels": [number % 3 for number in range(len(lengths))]}
    )


def model(problem_type: str = "single_label_classification", dropout: float = 0.0) -> LongspanForSequenceClassification:
    torch.manual_seed(0)
    return LongspanForSequenceClassification(
        LongspanConfig(
            vocab_size=20,
            dim=16,
            depth=1,
            heads=2,
            mixers=["additive"],
            dropout=dropout,
            initializer_range=0.3,
            pad_token_id=0,
            num_labels=3,
            problem_type=problem_type,
        )
    )


def correct(found: Tensor, labels: Tensor) -> Shares:
    share = float((found.argmax(-1) == labels).float().mean())
    return Shares(rows=[], accuracy=share, loss=1.0 - share)


def trainer(folder: Path, measure: Measure = correct, dropout: float = 0.0, **chosen: Any) -> LengthTrainer:
    settings: dict[str, Any] = {
        "per_device_train_batch_size": 2,
        "num_train_epochs": 3,
        "learning_rate": 0.01,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return LengthTrainer(
        model(dropout=dropout),
        TrainingArguments(output_dir=str(folder), **{**settings, **chosen}),
        train_dataset=documents(),
        eval_dataset=documents(),
        batch_tokens=0,
        streams=STREAMS,
        measure=measure,
    )


def test_outputs_are_those_of_each_document_alone_in_order() -> None:
    classifier = model(dropout=0.5).train()
    rows = documents()
    found = outputs(classifier, rows, scoring_batches(LENGTHS, 3, 0), streams=STREAMS)
    assert classifier.training
    assert not found.requires_grad
    classifier.eval()
    for number, row in enumerate(rows):
        alone = classifier(**pad([{"input_ids": row["input_ids"]}], STREAMS)).logits[0]
        torch.testing.assert_close(found[number], alone.detach())


def test_evaluations_log_every_number_and_draw_no_random_ones(tmp_path: Path) -> None:
    weights = []
    for strategy in ("no", "epoch"):
        made = trainer(tmp_path, dropout=0.2, eval_strategy=strategy)
        made.train()
        weights.append({name: tensor.clone() for name, tensor in made.model.state_dict().items()})
    logged = [row for row in made.state.log_history if "eval_accuracy" in row]
    assert [row["step"] for row in logged] == [4, 8, 12]
    assert all(row["eval_loss"] == 1 - row["eval_accuracy"] and "eval_rows" not in row for row in logged)
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


@pytest.mark.parametrize("best", [True, False])
def test_the_scores_of_the_kept_model_are_not_taken_again(best: bool, tmp_path: Path) -> None:
    taken: list[Shares] = []

    def falling(found: Tensor, labels: Tensor) -> Shares:
        taken.append(Shares(rows=[], accuracy=0.5 - len(taken) / 10, loss=1.0))
        return taken[-1]

    made = trainer(
        tmp_path,
        falling,
        eval_strategy="epoch",
        save_strategy="epoch",
        load_best_model_at_end=best,
        metric_for_best_model="accuracy",
        greater_is_better=True,
    )
    made.train()
    assert made.validation_scores() is taken[0 if best else 2]
    assert len(taken) == 3
    # Evaluations of other data are no validation scores.
    made.evaluate(documents([4, 4]))
    assert made.validation_scores() is taken[0 if best else 2]


def test_the_best_model_is_found_in_a_run_folder_that_was_moved(tmp_path: Path) -> None:
    left = iter([0.9, 0.8])
    chosen: dict[str, Any] = {"eval_strategy": "epoch", "save_strategy": "epoch", "load_best_model_at_end": True}
    chosen |= {"num_train_epochs": 2, "metric_for_best_model": "accuracy", "greater_is_better": True}

    def falling(found: Tensor, labels: Tensor) -> Shares:
        return Shares(rows=[], accuracy=next(left), loss=1.0)

    trainer(tmp_path / "here", falling, **chosen).train()
    (tmp_path / "here").rename(tmp_path / "there")
    moved = trainer(tmp_path / "there", falling, **chosen)
    # Nothing is left to train, and so nothing to save, from which the Trainer would know better.
    moved.train(resume_from_checkpoint=str(tmp_path / "there/checkpoint-8"))
    for name, tensor in load_file(tmp_path / "there/checkpoint-4/model.safetensors").items():
        assert torch.equal(moved.model.state_dict()[name], tensor)


@pytest.mark.parametrize("accumulated", [1, 2, 4])
def test_every_document_counts_the_same(accumulated: int, tmp_path: Path) -> None:
    """Batches of 2, 2, 2 and 1 documents; the reference is the plain mean over those of each step."""
    made = trainer(
        tmp_path,
        gradient_accumulation_steps=accumulated,
        num_train_epochs=1,
        optim="sgd",
        learning_rate=0.1,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
    )
    batches = list(made._training_batches(0))
    made.train()
    expected = model().train()
    for start in range(0, len(batches), accumulated):
        rows = [documents()[row] for batch in batches[start : start + accumulated] for row in batch]
        expected.zero_grad()
        losses = [expected(**pad([row], STREAMS)).loss for row in rows]
        torch.stack(losses).mean().backward()
        with torch.no_grad():
            for weight in expected.parameters():
                weight -= 0.1 * weight.grad
    found = dict(made.model.named_parameters())
    for name, weight in expected.named_parameters():
        # float32 sums in another order.
        torch.testing.assert_close(found[name], weight, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("problem_type", "label"),
    [
        ("single_label_classification", 1),
        ("multi_label_classification", [1.0, 0.0, 1.0]),
        ("regression", [0.5, 2.0, -1.0]),
    ],
)
def test_a_share_without_rows_adds_nothing(problem_type: str, label: Any, tmp_path: Path) -> None:
    made = trainer(tmp_path)
    classifier = model(problem_type)
    classifier.longspan.embeddings.table.sparse = True
    batch = _Share(Collator(STREAMS), {"input_ids": [3, 4, 5], "labels": label})([])
    made._count_items = classifier.count_items
    assert made.get_batch_samples(iter([batch]), 1, torch.device("cpu")) == ([batch], 0)
    loss = made.compute_loss(classifier, batch, num_items_in_batch=torch.tensor(5))
    loss.backward()
    assert loss == 0
    # Processes wait for the gradients of each other's weights: all must have some.
    gradients = {name: weight.grad for name, weight in classifier.named_parameters()}
    tokens = gradients.pop("longspan.embeddings.table.weight")
    assert all(gradient is not None and not gradient.any() for gradient in gradients.values())
    # No token has been read.
    assert tokens is not None
    assert len(tokens.coalesce().values()) == 0
    assert not batch["attention_mask"].any()


def test_a_target_of_regression_can_be_the_number_that_marks_missing_classes(tmp_path: Path) -> None:
    made, regression = trainer(tmp_path), model("regression")
    made._count_items = regression.count_items
    batch = Collator(STREAMS)([{"input_ids": [3, 4, 5], "labels": np.full(3, IGNORED, np.float32)}])
    (batch,), items = made.get_batch_samples(iter([batch]), 1, torch.device("cpu"))
    assert items == 3
    loss = made.compute_loss(regression, batch, num_items_in_batch=items)
    expected = (regression(**{**batch, "labels": None}).logits - IGNORED).square().mean()
    torch.testing.assert_close(loss, expected)


def test_more_processes_than_documents_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TrainingArguments, "world_size", 8)
    made = trainer(tmp_path)
    with pytest.raises(UserError, match="a document for each of 8 processes, got 7 to train on; start fewer"):
        made.raise_epochs_to(0)
    made.slices = SimpleNamespace(count=2, number=0)  # type: ignore[assignment]
    made.raise_epochs_to(0)
    made.train_dataset = made.train_dataset.select(range(3))
    with pytest.raises(UserError, match="a document for each of 4 groups of 2 processes, got 3 to train on"):
        made.raise_epochs_to(0)


def test_outputs_of_several_sizes_end_with_ignored() -> None:
    class Echo(torch.nn.Module):
        """Gives back what it reads, as a model that writes sequences does."""

        config = SimpleNamespace(num_labels=2)
        device = torch.device("cpu")

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"said": input_ids.masked_fill(attention_mask == 0, IGNORED)}

    rows = [{"input_ids": list(range(1, 1 + size))} for size in (2, 5, 1, 3)]
    # Wider ones come later, too.
    found = outputs(Echo(), rows, [[2], [0, 3], [1]], streams=STREAMS, name="said")
    assert [[number for number in row if number != IGNORED] for row in found.tolist()] == [
        row["input_ids"] for row in rows
    ]
    assert found.shape == (4, 5)


def test_graphs_are_not_cut_to_plan_a_time_budget() -> None:
    made = LengthTrainer.__new__(LengthTrainer)
    made.streams = STREAMS
    assert made.per_token_columns() == ["input_ids"]
    made.streams = {**STREAMS, "edges": Stream(width=2, joined=True)}
    assert not made.per_token_columns()
