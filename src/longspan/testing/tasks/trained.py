"""What training and scoring a task's models promise: complete results, resuming to the bit, equal scores."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file

from longspan.errors import UserError
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
    """A run that was killed and resumed ends with the weights of an uninterrupted one."""
    whole = subject.trained()
    stopped = subject.folder / "stopped"
    shutil.copytree(whole.folder, stopped)
    # As if killed after the first epoch.
    (stopped / "metrics.json").unlink()
    found = sorted((stopped / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    need(len(found) > 1, "training must save a checkpoint per epoch")
    shutil.rmtree(found[-1])
    train(subject.recipe(), run=stopped, resume=True, progress=False, allow_imports=subject.consent)
    first, second = (load_file(Path(run, "model.safetensors")) for run in (whole.folder, stopped))
    for name, weight in first.items():
        need(torch.equal(weight, second[name]), f"a resumed run must end with the same weights, but {name} differs")


def evaluates_as_in_training(subject: Subject) -> None:
    """`evaluate` gives the scores of training."""
    result = subject.trained()
    evaluation = evaluate(subject.run(), split="validation")
    for name, value in result.scores["validation"].numbers().items():
        again = evaluation.scores.numbers()[name]
        # Different batches: sums in another order.
        need(abs(again - value) <= 1e-4 * max(1, abs(value)), f"{name} must be {value} as in training, got {again}")
    json.dumps(evaluation.to_dict())
    need(bool(subject.task().evaluation_report(evaluation).strip()), "evaluation_report must say something")
