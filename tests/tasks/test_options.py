"""Options as dataclasses: names, values and exclusive ones are checked, flags say the same as keyword arguments."""

import argparse
import math
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from longspan import tasks
from longspan.errors import UserError
from longspan.options import add_flags, make, names
from longspan.tasks.base.options import GenerationOptions, LengthTrainingOptions, check_at_least, option
from longspan.tasks.language_modelling.options import EvaluationOptions, TrainingOptions


@dataclass(frozen=True)
class Some:
    """Of every kind that flags may have."""

    size: int = option(3, "how many")
    share: float | None = option(None, "how much")
    word: str = option("", "a word")
    way: Literal["long", "short"] | None = option(None, "which way")
    quick: bool = option(False, "at once")

    def __post_init__(self) -> None:
        check_at_least(self, size=1, share=0)


def test_what_is_given_is_taken_and_the_rest_is_as_declared() -> None:
    assert make(Some, {}, "x") == Some()
    assert make(Some, {"size": 7, "way": "long"}, "x") == Some(size=7, way="long")
    assert make(Some, {"share": None, "way": None}, "x") == Some()
    assert names(Some) == ["size", "share", "word", "way", "quick"]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"sise": 3}, r"^scoring has no option 'sise'; did you mean 'size'\?$"),
        ({"nothing": 3}, r"has no option 'nothing'; .*quick, share, size, way, word"),
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"share": -0.5}, r"share must be at least 0, got -0\.5"),
        ({"way": "shrt"}, r"there is no way 'shrt'; did you mean 'short'\?"),
    ],
)
def test_what_cannot_be(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        make(Some, given, "scoring")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"size": "4"}, r"^size expected an integer, got '4'; correct it\.$"),
        ({"size": 4.0}, "size expected an integer, got 4.0"),
        ({"size": True}, "size expected an integer, got True"),
        ({"size": None}, "size expected an integer, got None"),
        ({"share": "half"}, "share expected a number, got 'half'"),
        ({"word": 3}, "word expected a string, got 3"),
        ({"word": ["a"] * 1000}, r"word expected a string, got \['a', .*\.\.\."),
        ({"way": 3}, "way expected one of long, short, got 3"),
        ({"quick": "yes"}, "quick expected true or false, got 'yes'"),
    ],
)
def test_values_of_another_type(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as raised:
        make(Some, given, "scoring")
    assert len(str(raised.value)) < 120


def test_whole_numbers_are_numbers() -> None:
    assert make(Some, {"share": 1}, "x").share == 1


def test_a_task_without_options_says_so() -> None:
    task = tasks.load("document_classification")
    with pytest.raises(UserError, match="scoring has no option 'window'; known names are precision, recall"):
        make(task.evaluation_options, {"window": 3}, "scoring")


def parsed(kind: type, *given: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    add_flags(parser, kind)
    return vars(parser.parse_args(given))


def test_flags_leave_no_trace_unless_they_are_given() -> None:
    assert parsed(Some) == {}
    given = ["--size", "5", "--share", "0.5", "--word", "a b", "--way", "short", "--quick"]
    assert parsed(Some, *given) == {"size": 5, "share": 0.5, "word": "a b", "way": "short", "quick": True}


def test_help_names_choices_and_defaults() -> None:
    parser = argparse.ArgumentParser()
    add_flags(parser, Some)
    text = " ".join(parser.format_help().split())
    assert "--size N how many (default: 3)" in text
    assert "--way {long,short} which way" in text
    assert "None" not in text


@pytest.mark.parametrize("kind", [EvaluationOptions, GenerationOptions, TrainingOptions, LengthTrainingOptions])
def test_every_option_has_help(kind: type) -> None:
    made = kind()
    parser = argparse.ArgumentParser()
    add_flags(parser, kind)
    for name in names(kind):
        assert f"--{name.replace('_', '-')}" in parser.format_help()
        assert hasattr(made, name)


@pytest.mark.parametrize(
    ("kind", "given", "message"),
    [
        (GenerationOptions, {"max_new_tokens": 0}, "max_new_tokens must be at least 1, got 0"),
        (GenerationOptions, {"top_k": -1}, "top_k must be at least 0, got -1"),
        (GenerationOptions, {"temperature": math.nan}, "temperature must be above 0, got nan"),
        (GenerationOptions, {"temperature": -1}, "for the most likely tokens, use greedy"),
        (GenerationOptions, {"top_p": 1.5}, r"top_p must be above 0 and at most 1, got 1\.5"),
        (GenerationOptions, {"top_p": math.nan}, "top_p must be above 0"),
        (EvaluationOptions, {"window": 0}, "window must be at least 1, got 0"),
        (EvaluationOptions, {"stride": 0}, "stride must be at least 1, got 0"),
        (EvaluationOptions, {"attention_length": -1}, "attention_length must be at least 0, got -1"),
        (EvaluationOptions, {"segment_length": 0}, "segment_length must be at least 1, got 0"),
        (EvaluationOptions, {"context": "slide"}, r"there is no context 'slide'; did you mean 'sliding'\?"),
        (TrainingOptions, {"segment_length": 0}, r"training\.segment_length must be at least 1, got 0; 256 suits most"),
        (LengthTrainingOptions, {"batch_tokens": -1}, "batch_tokens must be at least 0, got -1"),
    ],
)
def test_values_out_of_range(kind: type, given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        kind(**given)
