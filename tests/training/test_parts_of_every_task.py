"""Promises of every task whose models contain a simple part: what is scored, how often, and what a run says of it."""

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from test_tasks_in_two_processes import KEYS, a_graph, rows

from longspan import recipes, report, tasks, train
from longspan.results.parts import COUNTS, NAMES, NETWORK, Parts
from longspan.tasks.base.task import Task

#: A recipe of each task whose models contain a simple part.
RECIPES = {
    "audio_classification": "audio",
    "document_classification": "classify",
    "document_pairs": "pairs",
    "document_regression": "regression",
    "frame_labelling": "frames",
    "graph_classification": "graphs",
    "image_classification": "images",
    "language_modelling": "model-text",
    "multi_label_classification": "multi-label",
    "node_classification": "nodes",
    "recommendation": "news",
    "token_classification": "ner",
}
OWN = {"language_modelling": ["training.segment_length=8", "training.per_device_train_batch_size=2"]}
SMALL = ["data.validation_fraction=0.3", "data.test_fraction=0.3", "training.max_minutes=0", "training.min_steps=0"]
SMALL += ["training.num_train_epochs=3", "training.early_stopping_patience=0"]


def test_every_task_with_a_simple_part_is_checked() -> None:
    assert sorted(RECIPES) == [name for name in tasks.names() if tasks.load(name).counts()]


def settings(task: str, folder: Path) -> list[str]:
    """Settings of a recipe for the data of a task."""
    data = folder / f"{task}.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows(task)), encoding="utf-8")
    more = [key for key in [*KEYS.get(task, []), *OWN.get(task, [])] if not key.startswith("training.seed")]
    if task == "node_classification":
        data, edges = a_graph(folder)
        more.append(f"data.edges={edges}")
    return [f"data.path={data}", *SMALL, *more]


@pytest.mark.slow
@pytest.mark.parametrize("name", RECIPES)
def test_a_task_keeps_the_promises_of_its_simple_part(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes.load(RECIPES[name], settings(name, tmp_path))
    scored: list[tuple[bool, bytes]] = []

    def make_trainer(task: Task, *arguments: Any, usual: Any) -> Any:
        trainer = usual(task, *arguments)

        def score(dataset: Any, own: Any = trainer.score) -> Any:
            if not trainer._rehearses:
                weights = b"".join(each.detach().numpy().tobytes() for each in trainer.model.parameters())
                scored.append((dataset is trainer.eval_dataset, weights))
            return own(dataset)

        trainer.score = score
        return trainer

    kind = type(recipe.task)
    monkeypatch.setattr(kind, "make_trainer", functools.partialmethod(make_trainer, usual=kind.make_trainer))
    result = train(recipe, run=tmp_path / "run", progress=False)
    assert len({*scored}) == len(scored), "nothing is scored twice with the same weights"
    assert sum(not validation for validation, _ in scored) == 1, "the test split is scored once"
    text = report.training_summary(result, "")
    for details, split in (("parts", "validation"), ("test_parts", "test")):
        found = Parts.from_dict(result.details[details])
        line = [split, *(report.number(found.values[part]) for part in NAMES)]
        assert line in [line.split() for line in text.splitlines()]
    found = Parts.from_dict(result.details["parts"])
    assert found.gain(COUNTS) >= -1e-9
    assert found.gain(NETWORK) >= -1e-9
    # What the run prints where the network changes nothing.
    alone = train(result.folder, report.ALONE, run=tmp_path / "alone", progress=False)
    assert alone.steps == 1
    assert alone.parameters <= result.parameters
    assert Parts.from_dict(alone.details["parts"]).gain(COUNTS) >= -1e-9
