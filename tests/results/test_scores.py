"""Typed scores: names and words in order, the headline, and the way into JSON and back."""

import dataclasses
import json
import math
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from longspan.errors import UserError
from longspan.report import scores_table
from longspan.results.scores import Scores, score


@dataclass(frozen=True)
class Errors(Scores):
    by_speaker: dict[str, float]
    words: float = score("word errors", higher_is_better=False)
    right: float = score("sentences right", higher_is_better=True, share=True)


@dataclass(frozen=True)
class Marked(Errors):
    quality: float = score("quality", higher_is_better=True, headline=True)


FOUND = Errors(by_speaker={"ann": 3.0}, words=math.inf, right=0.25)


def test_what_tables_show_comes_in_order_the_headline_first() -> None:
    assert Errors.shown() == {"words": "word errors", "right": "sentences right"}
    assert list(Marked.shown()) == ["quality", "words", "right"]
    assert (Errors.headline(), Errors.higher_is_better()) == ("words", False)
    assert (Marked.headline(), Marked.higher_is_better()) == ("quality", True)
    assert Errors.higher_is_better("right")
    assert [Errors.is_share(name) for name in Errors.shown()] == [False, True]


def test_numbers_are_those_shown() -> None:
    assert FOUND.numbers() == {"words": math.inf, "right": 0.25}
    assert list(Marked(by_speaker={}, words=1, right=0, quality=2).numbers()) == ["quality", "words", "right"]


def test_scores_go_into_json_and_come_back() -> None:
    assert Errors.from_dict(json.loads(json.dumps(FOUND.to_dict()))) == FOUND


def test_scores_do_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        FOUND.words = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"right": None}, "got None for right"),
        ({"right": True}, "got True for right"),
        ({"wrong": 1.0}, "no field of Errors called 'wrong'"),
    ],
)
def test_other_values_are_refused(changed: dict[str, Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        Errors.from_dict({**FOUND.to_dict(), **changed})


def test_missing_values_and_unknown_scores_are_refused() -> None:
    with pytest.raises(UserError, match="got none for words, right"):
        Errors.from_dict({"by_speaker": {}})
    with pytest.raises(UserError, match="no score of Errors called 'write'; did you mean 'right'"):
        Errors.is_share("write")


def test_a_class_has_something_to_show_and_one_headline() -> None:
    @dataclass(frozen=True)
    class Two(Marked):
        other: float = score("other", higher_is_better=True, headline=True)

    with pytest.raises(TypeError, match="headlines quality, other"):
        Two.shown()
    with pytest.raises(TypeError, match="got none"):
        Scores.shown()


def test_importing_scores_is_light() -> None:
    code = "import sys, longspan.results.scores; print('\\n'.join(sys.modules))"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"torch", "numpy", "transformers"} & set(ran.stdout.split())


@dataclass(frozen=True)
class Guessed(Errors):
    loss: float | None = score("loss", higher_is_better=False, optional=True)


def test_an_optional_score_may_be_missing() -> None:
    found = Guessed(by_speaker={}, words=1.0, right=0.5, loss=None)
    assert found.numbers() == {"words": 1.0, "right": 0.5}
    assert Guessed.from_dict(json.loads(json.dumps(found.to_dict()))) == found
    with pytest.raises(UserError, match="None for words"):
        Guessed.from_dict({**found.to_dict(), "words": None})
    shown = scores_table({"one": found, "other": dataclasses.replace(found, loss=2.0)})
    assert shown.splitlines()[2].split()[-1] == "-"
