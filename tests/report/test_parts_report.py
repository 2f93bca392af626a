"""Tables of what counts and networks do alone and together."""

import dataclasses

import pytest

from longspan.report.comparison import comparison_summary
from longspan.report.parts import conclusion, of_mixers, of_model
from longspan.results import Comparison, Evaluation, MixerSummary, Spread
from longspan.results.parts import NAMES, Parts
from longspan.tasks.base.classes import ClassificationScores

SCORES = ClassificationScores(
    accuracy=0.91, macro_f1=0.905, calibration_error=0.03, loss=0.31, per_class={}, reliability=[], confusion=[]
)
PARTS = Parts(
    "accuracy",
    True,
    dict(zip(NAMES, (0.8, 0.7, 0.8125), strict=True)),
    dict.fromkeys(NAMES, (0.75, 0.875)),
    {"counts": (0.005, 0.025), "network": (0.1, 0.2)},
)
TOLD = (
    "Counts and network together are best (accuracy 0.812): better than the counts alone by 0.012 (95 % interval 0.005 "
    "to 0.025, significant). The counts do most of the work."
)


def compared(*rows: tuple[str, dict[str, Parts]], seeds: int = 1) -> Comparison:
    numbers = {name: Spread(value, None) for name, value in SCORES.numbers().items()}
    cost = Spread(1.0, None)
    summary = [
        MixerSummary(name, {"validation": numbers}, cost, cost, cost, 1, 1, seeds, parts) for name, parts in rows
    ]
    return Comparison("mine", "document_classification", ClassificationScores, [], "runs", [], summary)


def test_the_parts_of_a_model() -> None:
    table, told = of_model({"parts": PARTS.to_dict()}, ClassificationScores, "github")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    assert cells[0] == ["part", "accuracy", "95 % interval"]
    assert cells[2:] == [
        ["counts", "0.800", "0.750 to 0.875"],
        ["network", "0.700", "0.750 to 0.875"],
        ["both", "0.812", "0.750 to 0.875"],
    ]
    assert told == TOLD
    assert of_model({"labels": ["a"]}, ClassificationScores) == []


def test_the_parts_of_mixers() -> None:
    result = compared(("additive", {"validation": PARTS}), ("softmax", {"validation": PARTS}), seeds=3)
    table, note, told = of_mixers(result)
    head = table.splitlines()[0]
    assert [head.find(f"validation accuracy, {name}") > 0 for name in NAMES] == [True] * 3
    assert "0.700 (0.750 to 0.875)" in table
    assert note == "In brackets: 95 % intervals by a bootstrap over examples, mean of 3 seeds."
    assert told == conclusion(result)
    assert told.startswith(
        "On the validation split, which also chose the weights of both parts: additive and softmax are best"
    )
    assert "\n\n".join((table, note, told)) in comparison_summary(result)


def test_the_test_split_says_more_than_the_validation_split() -> None:
    both = {"validation": PARTS, "test": dataclasses.replace(PARTS, values=dict.fromkeys(NAMES, 0.5))}
    result = compared(("additive", both))
    assert conclusion(result).startswith("On the test split: ")
    assert "test accuracy, both" in of_mixers(result)[0]
    # What one of the mixers lacks cannot be compared.
    mixed = compared(("additive", both), ("softmax", {"validation": PARTS}))
    assert conclusion(mixed).startswith("On the validation split")


@pytest.mark.parametrize(
    "result", [compared(), compared(("additive", {})), compared(("a", {"test": PARTS}), ("b", {}))]
)
def test_nothing_is_said_of_models_without_parts(result: Comparison) -> None:
    assert of_mixers(result) == []
    assert conclusion(result) == ""
    assert "conclusion" not in result.to_dict()


def test_notebooks_show_them() -> None:
    result = compared(("additive", {"validation": PARTS}))
    result = dataclasses.replace(result, conclusion=conclusion(result))
    page = result.html()
    assert "<tr><td>additive</td><td>validation</td><td>0.8</td><td>0.7</td><td>0.8125</td></tr>" in page
    assert f"<p>{result.conclusion}</p>" in page
    assert result.to_dict()["conclusion"] == result.conclusion
    assert result.to_dict()["summary"][0]["parts"] == {"validation": PARTS.to_dict()}
    one = Evaluation("t", "test", "a.csv", SCORES, {"parts": PARTS.to_dict()}, {}, "none").html()
    assert "<tr><td>both</td><td>0.8125</td><td>0.75</td><td>0.875</td></tr>" in one
    assert "Counts and network together are best" in one
    assert "Counts" not in Evaluation("t", "test", "a.csv", SCORES, {}, {}, "none").html()
