"""Mistakes and likely wrong labels: what is wrong, in what order, and that every task lists it."""

import inspect
import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset

from longspan import tasks
from longspan.results.mistakes import MOST, Mistakes, excerpt
from longspan.tasks.base.engine import PipelineTask
from longspan.tasks.base.examples import ExampleTask
from longspan.tasks.base.mistakes import class_errors, flag_errors, label_issues, number_errors
from longspan.tasks.frame_labelling.task import worst_stretches
from longspan.tasks.language_modelling.task import worst_passages
from longspan.tasks.masked_words.task import worst_words

NAMES = ["cat", "dog", "owl"]


def logits_of(*rows: list[float]) -> torch.Tensor:
    """Return logits with these probabilities."""
    return torch.tensor(rows).log()


def test_the_most_confident_error_comes_first() -> None:
    logits = logits_of([0.5, 0.3, 0.2], [0.1, 0.8, 0.1], [0.2, 0.1, 0.7], [0.9, 0.05, 0.05])
    rows = Dataset.from_dict({"text": ["a", "b", "c", "d"], "where": [f"x.csv, row {n}" for n in range(1, 5)]})
    found = class_errors(logits, torch.tensor([1, 1, 0, 2]), NAMES).among(rows, ["text"])
    assert [(one.where, one.expected, one.said, one.text) for one in found.worst] == [
        ("x.csv, row 4", "owl", "cat", "d"),
        ("x.csv, row 3", "cat", "owl", "c"),
        ("x.csv, row 1", "dog", "cat", "a"),
    ]
    assert [one.score for one in found.worst] == pytest.approx([0.9, 0.7, 0.5])
    assert found.count == 3


def test_label_issues_are_those_of_confident_learning() -> None:
    # Thresholds: cat (0.9 + 0.2) / 2 = 0.55, dog (0.6 + 0.6) / 2 = 0.6. Nothing is labelled owl.
    logits = logits_of([0.9, 0.1, 0.0001], [0.2, 0.7, 0.1], [0.4, 0.6, 0.0001], [0.39, 0.6, 0.01])
    found = label_issues(logits, torch.tensor([0, 0, 1, 1]), NAMES)
    assert np.isnan(found.scores).tolist() == [True, False, True, True]
    assert found.scores[1] == pytest.approx(0.2)
    assert (found.expected(1), found.said(1)) == ("cat", "dog")
    # An error is no issue where no class reaches its threshold.
    unsure = logits_of([0.9, 0.1, 0.0001], [0.5, 0.51, 0.0001], [0.05, 0.95, 0.0001])
    assert np.isnan(label_issues(unsure, torch.tensor([0, 0, 1]), NAMES).scores).all()


def test_the_least_likely_label_comes_first() -> None:
    # And ten of each class that the model knows.
    known = [[0.9, 0.1]] * 10 + [[0.1, 0.9]] * 10
    logits = logits_of([0.9, 0.1], [0.1, 0.9], [0.3, 0.7], [0.05, 0.95], [0.1, 0.9], *known)
    rows = Dataset.from_dict({"where": [str(number) for number in range(25)]})
    found = label_issues(logits, torch.tensor([0, 0, 0, 0, 1] + [0] * 10 + [1] * 10), NAMES[:2]).among(rows)
    assert [one.where for one in found.worst] == ["3", "1"]


def test_flags_are_ranked_by_the_most_confident_wrong_decision() -> None:
    shares = torch.tensor([[0.9, 0.2, 0.4], [0.6, 0.5, 0.1], [0.1, 0.1, 0.1]])
    found = flag_errors(shares, torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, 0, 0]]), [0.5, 0.5, 0.5], NAMES)
    assert np.isnan(found.scores).tolist() == [True, False, True]
    # Wrong are cat, dog and owl; it is surest that there is no owl.
    assert found.scores[1] == pytest.approx(0.9)
    assert (found.expected(1), found.said(1), found.expected(2)) == ("owl", "cat, dog", "(none)")


def test_numbers_are_ranked_by_absolute_error() -> None:
    found = number_errors(torch.tensor([1.0, 4.0, 2.5]), torch.tensor([1.0, 2.0, 3.0]))
    assert found.scores.tolist()[1:] == [2, 0.5]
    assert math.isnan(found.scores[0])
    assert (found.expected(1), found.said(1)) == ("2", "4")


def test_only_the_worst_are_kept_and_told() -> None:
    told: list[int] = []

    def tell(number: int) -> dict[str, str]:
        told.append(number)
        return {"where": str(number), "expected": "x" * 1000, "said": "a\nb"}

    found = Mistakes.ranked("nats", np.arange(1000.0), tell)
    assert told == list(range(999, 999 - MOST, -1))
    assert found.count == 1000
    assert len(found.worst[0].expected) <= 300
    assert found.worst[0].said == "a b"
    assert found.to_dict()["worst"][0]["score"] == 999


def test_an_excerpt_says_that_there_is_more() -> None:
    assert excerpt("one two", 20) == "one two"
    assert excerpt("x" * 50, 10) == "xxxxxxxx …"
    assert excerpt(" " * 100 + "x", 10) == " …"


@pytest.mark.parametrize("name", tasks.names())
def test_every_task_lists_mistakes(name: str) -> None:
    kind = type(tasks.load(name))
    if issubclass(kind, ExampleTask):
        assert kind.errors is not ExampleTask.errors
    elif issubclass(kind, PipelineTask):
        scores = [vars(each)["score"] for each in kind.pipeline_class.__mro__ if "score" in vars(each)]
        assert any('"mistakes": ' in inspect.getsource(score) for score in scores)
    else:
        assert '"mistakes": ' in inspect.getsource(kind.evaluate)


class Letters:
    """Tokens 0, 1, 2 ... are the letters a, b, c ..."""

    def decode(self, ids: Any) -> str:
        return "".join(chr(ord("a") + int(token)) for token in ([ids] if np.ndim(ids) == 0 else ids))


def test_passages_with_the_highest_loss_and_their_least_expected_token() -> None:
    letters: Any = Letters()
    ids = [[0] * 64 + [1, 2], [3, 4]]
    documents = Dataset.from_dict({"input_ids": ids, "where": ["a.txt", "b.txt"]})
    # The last of each is that of the end.
    losses = [np.full(67, 1.0), np.array([2.0, 1.0, 9.0])]
    losses[0][65] = 4.0
    found = worst_passages(losses, documents, letters)
    assert [(one.where, one.expected, one.text) for one in found.worst] == [
        ("b.txt, tokens 1 to 2", "the end of the document", "de"),
        ("a.txt, tokens 65 to 66", "c", "bc"),
        ("a.txt, tokens 1 to 64", "a", "a" * 64),
    ]
    assert [one.score for one in found.worst] == pytest.approx([4, 2, 1])


def test_masked_tokens_have_their_places() -> None:
    letters: Any = Letters()
    documents = Dataset.from_dict({"length": [3, 4], "where": ["a.txt", "b.txt"]})
    # Seven tokens in rows of five; masked are the third, the fifth and the sixth.
    rows = [
        {"input_ids": torch.tensor([0, 1, 9, 3, 9]), "labels": torch.tensor([-100, -100, 2, -100, 4])},
        {"input_ids": torch.tensor([9, 6]), "labels": torch.tensor([5, -100])},
    ]
    found = worst_words(np.array([1.0, 2.0, 3.0]), np.array([7, 4, 8]), np.array([2, 4, 5]), rows, documents, letters)
    assert [(one.where, one.expected, one.said, one.text) for one in found.worst] == [
        ("b.txt, token 3", "f", "i", "jg"),
        ("a.txt, token 3", "c", "h", "abjdj"),
    ]


def test_stretches_of_recordings_have_their_times() -> None:
    recordings = Dataset.from_dict({"where": ["a.wav", "b.wav"]})
    right = [np.array([0, 1, 1, 1]), np.array([2, 2])]
    given = [np.array([0, 0, 0, 1]), np.array([2, 0])]
    frames: Any = SimpleNamespace(hop=0.5, middle=0.25)
    found = worst_stretches(right, given, recordings, NAMES, frames)
    assert [(one.where, one.expected, one.said, one.score) for one in found.worst] == [
        ("a.wav, 0.50 to 1.50 s", "dog", "cat", 1.0),
        ("b.wav, 0.50 to 1.00 s", "owl", "cat", 0.5),
    ]
