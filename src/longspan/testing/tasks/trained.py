"""What training and scoring a task's models promise: complete results, resuming to the bit, equal scores."""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from longspan.errors import UserError
from longspan.results.parts import BOTH, Parts
from longspan.results.scores import Scores
from longspan.testing.tasks.subject import Subject, need
from longspan.verbs.evaluate import evaluate
from longspan.verbs.train import train


def trains(subject: Subject) -> None:
    """Training scores the validation split, writes what it returns, and a model card."""
    result = subject.trained()
    kind = subject.task().scores
    need("validation" in result.scores, "training must score the validation split")
    for split, scores in result.scores.items():
        need(isinstance(scores, kind), f"the scores of {split} must be {kind.__name__}, but are {scores!r}")
        stored = json.loads(json.dumps(scores.to_dict()))
        try:
            survives = kind.from_dict(stored) == scores
        except UserError as error:
            raise AssertionError(f"the scores of {split} must survive JSON, but {error}") from error
        need(survives, f"the scores of {split} must survive JSON, but {stored} gives others than {scores!r}")
    written = json.loads((Path(result.folder) / "metrics.json").read_text(encoding="utf-8"))
    need(written == json.loads(json.dumps(result.to_dict())), "metrics.json must hold what training returned")
    card = (Path(result.folder) / "README.md").read_text(encoding="utf-8")
    need(card.startswith("---\n"), "the model card must begin as the Hugging Face Hub reads it")
    need(bool(subject.task().data_table(result.data).strip()), "data_table must show the splits")


def resumes_to_the_same_weights(subject: Subject) -> None:
    """A run that was killed and resumed ends with the weights of an uninterrupted one, and says the same of its parts,
    also where it was killed after its last step."""
    whole = subject.trained()
    stopped = subject.folder / "stopped"
    shutil.copytree(whole.folder, stopped)
    # As if killed after the first epoch.
    (stopped / "metrics.json").unlink()
    found = sorted((stopped / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    need(len(found) > 1, "training must save a checkpoint per epoch")
    shutil.rmtree(found[-1])
    for when in ("after the first epoch", "after the last step"):
        resumed = train(subject.recipe(), run=stopped, resume=True, progress=False, allow_imports=subject.consent)
        first, second = (load_file(Path(run, "model.safetensors")) for run in (whole.folder, stopped))
        for name, weight in first.items():
            need(
                torch.equal(weight, second[name]),
                f"a run resumed {when} must end with the same weights, but {name} differs",
            )
        parts = [result.details.get("parts") for result in (whole, resumed)]
        need(parts[0] == parts[1], f"a run resumed {when} must say {parts[0]} of its parts, but says {parts[1]}")
        (stopped / "metrics.json").unlink()


def evaluates_as_in_training(subject: Subject) -> None:
    """`evaluate` gives the scores of training, those of a model's parts among them if it has any."""
    result = subject.trained()
    evaluation = evaluate(subject.run(), split="validation")
    for name, value in result.scores["validation"].numbers().items():
        again = evaluation.scores.numbers()[name]
        # Different batches: sums in another order.
        need(abs(again - value) <= 1e-4 * max(1, abs(value)), f"{name} must be {value} as in training, got {again}")
    for what, found, scores in (
        ("training", result.details, result.scores["validation"]),
        ("evaluate", evaluation.details, evaluation.scores),
    ):
        if "parts" in result.details or "parts" in evaluation.details:
            _check_parts(what, found, scores)
    json.dumps(evaluation.to_dict())
    need(bool(subject.task().evaluation_report(evaluation).strip()), "evaluation_report must say something")


def _check_parts(what: str, details: Mapping[str, Any], scores: Scores) -> None:
    """Counts, network and both have one of the scores, and that of both is the model's."""
    need(
        "parts" in details, f"training and evaluate must both report the scores of a model's parts, but {what} does not"
    )
    try:
        parts = Parts.from_dict(details["parts"])
    except UserError as error:
        raise AssertionError(f"{what} must report a model's parts as Parts.to_dict, but {error}") from error
    numbers = scores.numbers()
    need(
        parts.score in numbers and parts.higher_is_better == scores.higher_is_better(parts.score),
        f"{what} must report a score of {type(scores).__name__} for a model's parts, but reports {parts.score!r}",
    )
    both, value = parts.values[BOTH], numbers[parts.score]
    need(
        abs(both - value) <= 1e-4 * max(1, abs(value)),
        f"{parts.score} of both parts must be that of the model, {value}, but {what} reports {both}",
    )
