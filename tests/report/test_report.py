"""Tables and the model card that all tasks share."""

import dataclasses
import math
import sys
import types
from pathlib import Path

import numpy as np
import pytest
from huggingface_hub import ModelCard, metadata_eval_result

from longspan import mixers, recipes, report
from longspan.report.card import card_template, model_card
from longspan.report.comparison import comparison_summary
from longspan.results import ComparedRun, Comparison, Evaluation, MixerSummary, Spread, TrainingResult
from longspan.results.parts import NAMES, compare_parts
from longspan.tasks.base.classes import ClassificationScores

SCORES = ClassificationScores(
    accuracy=0.91, macro_f1=0.905, calibration_error=0.03, loss=0.31, per_class={}, reliability=[], confusion=[]
)
ROW = {"documents": 1200, "tokens": 45000, "median_length": 30, "longest": 99, "cut_documents": 7, "removed_tokens": 80}
RESULT = TrainingResult(
    task="document_classification",
    folder="runs/mine",
    scores={"validation": SCORES, "test": dataclasses.replace(SCORES, accuracy=0.89)},
    history=[],
    kept_epoch=1.0,
    steps=3,
    processes=1,
    tokens_per_second=41234.4,
    padding_fraction=0.1,
    peak_memory_bytes=300 * 2**20,
    parameters=1234567,
    seconds=7300.0,
    word_vectors_found=None,
    data={"train": ROW, "test": ROW, "skipped": {}},
    details={"labels": ["no", "yes|maybe"]},
)


def card(name: str, source: str = "", result: TrainingResult = RESULT, encoder: str | None = None) -> str:
    recipe = recipes.load(name)
    data, model = dataclasses.replace(recipe.data, path=source), {**recipe.model, "encoder": encoder}
    recipe = dataclasses.replace(recipe, data=data, model=model)
    mixers = recipe.model.get("mixers", ["additive"])
    return model_card(recipe, result, mixers, recipe.task.data_table(result.data, "github"))


def test_cells() -> None:
    assert report.count(1234567) == "1,234,567"
    assert report.count(None) == "-"
    assert report.size(2**20) == "1 MiB"
    assert report.size(1.5 * 2**30) == "1.50 GiB"
    assert report.duration(3.21) == "3.2 s"
    assert report.duration(119.6) == "2 min 0 s"
    assert report.duration(7300) == "2 h 1 min"
    assert report.spread(Spread(0.5, 0.01)) == "0.500 ± 0.010"
    assert report.spread(Spread(0.5, None)) == "0.500"
    assert report.spread(None) == "-"


def test_a_card_names_the_encoder(tmp_path: Path) -> None:
    text = card("quickstart", encoder="some/encoder")
    assert "base_model: some/encoder\n" in text
    assert "Made with longspan: additive over the outputs of some/encoder, " in text
    text = card("quickstart", encoder=str(tmp_path))
    assert "base_model" not in text
    assert str(tmp_path) not in text
    assert f"additive over the outputs of {tmp_path.name}, " in text


def test_tables_leave_class_names_alone() -> None:
    text = report.table(["class", "n"], [["1e5", "1"], ["007", "2"], ["a|b", "3"]], "github")
    assert "1e5" in text
    assert "007" in text
    assert "a\\|b" in text
    assert report.table(["class"], []) == "(nothing)"


def test_mixer_tables_and_pages() -> None:
    descriptions = [mixers.describe(name) for name in mixers.names()]
    for width in (60, 100):
        listed = report.mixer_table(descriptions, width)
        assert max(map(len, listed.splitlines())) <= width
        unbroken = " ".join(listed.split())
        for entry in descriptions:
            assert f"{entry.summary} Cost: {entry.cost}" in unbroken
    assert "additive            causal, streaming, context, packing\n" in listed
    assert "fastformer (additive)" in listed
    assert "interaction" in report.mixer_page(mixers.describe("additive"))


def test_the_training_summary_tells_what_was_cut() -> None:
    text = report.training_summary(RESULT, recipes.load("imdb").task.data_table(RESULT.data))
    for part in ("1,200", "7", "80", "0.890", "41,234 tokens/s", "300 MiB", "2 h 1 min", RESULT.folder):
        assert part in text


def test_the_training_summary_compares_counts_and_network() -> None:
    right = np.array([[1, 1], [1, 1], [0, 1]])
    parts = dict.fromkeys(NAMES, right)
    found = compare_parts(
        "accuracy", True, {**parts, "network": right[::-1] * [0, 1]}, lambda sums: sums[..., 0] / sums[..., 1]
    )
    for key, split in (("parts", "validation"), ("test_parts", "test")):
        text = report.training_summary(dataclasses.replace(RESULT, details={key: found.to_dict()}), "")
        assert (
            f"Parts on the {split} split: The count-based part alone gives the same results (accuracy 0.667); the "
            "network adds nothing on these data. To keep it alone, with a network of next to no size: longspan train "
            f"{RESULT.folder} --run {RESULT.folder}-counts model.dim=8 " in text
        )
        assert [split, "0.667", "0.000", "0.667"] in [line.split() for line in text.splitlines()]
    assert "Parts" not in report.training_summary(RESULT, "")


def test_the_model_card_is_one_the_hub_reads() -> None:
    read = ModelCard(card("imdb"))
    meta, body = read.data.to_dict(), read.text
    assert meta["library_name"] == "longspan"
    # Whoever owns the model chooses.
    assert "license" not in meta
    assert "datasets" not in meta
    assert meta["pipeline_tag"] == "text-classification"
    assert {"longspan", "additive"} <= set(meta["tags"])
    assert meta["metrics"] == ["accuracy", "f1"]
    for part in (
        "`yes|maybe`",
        "| validation",
        "0.910",
        "0.890",
        "1,234,567",
        "only the first 1,024 tokens of each",
        "pipeline(",
    ):
        assert part in body
    assert "read in full" in card("movie-reviews")


def test_a_task_defined_in_a_notebook_has_a_card(monkeypatch: pytest.MonkeyPatch) -> None:
    # Its module has no file.
    notebook = types.ModuleType("notebook_cell")
    monkeypatch.setitem(sys.modules, notebook.__name__, notebook)
    kind = type("Stars", (type(recipes.load("imdb").task),), {"__module__": notebook.__name__})
    assert card_template(kind).name == "card.md"


def test_the_hub_lists_the_scores_of_the_card() -> None:
    (listed,) = ModelCard(card("imdb", "hub:stanfordnlp/imdb/plain_text")).data.to_dict()["model-index"]
    assert [each["dataset"]["split"] for each in listed["results"]] == ["validation", "test"]
    found = listed["results"][1]
    assert [metric["name"] for metric in found["metrics"]] == list(ClassificationScores.shown().values())
    expected = metadata_eval_result(
        model_pretty_name="imdb",
        task_pretty_name="Text Classification",
        task_id="text-classification",
        metrics_pretty_name="macro-F1",
        metrics_id="f1",
        metrics_value=0.905,
        dataset_pretty_name="stanfordnlp/imdb",
        dataset_id="stanfordnlp/imdb",
        dataset_split="test",
    )["model-index"][0]
    assert listed["name"] == expected["name"]
    (form,) = expected["results"]
    assert found["dataset"] == form["dataset"]
    assert found["task"]["type"] == form["task"]["type"]
    assert {key: value for key, value in form["metrics"][0].items() if key != "verified"} in found["metrics"]
    # What has no form in JSON is left out.
    bad = dataclasses.replace(RESULT, scores={"test": dataclasses.replace(SCORES, loss=math.inf)})
    assert "cross-entropy" not in card("imdb", result=bad).split("\n---\n")[0]


@pytest.mark.parametrize(
    ("source", "named"),
    [
        ("hub:imdb", ["imdb"]),
        ("hub:owner/films/plain", ["owner/films"]),
        ("hub:./films", None),
        ("hub:/data/films", None),
        ("/data/films", None),
        ("packages", None),
    ],
)
def test_the_card_names_data_sets_of_the_hub_alone(source: str, named: list[str] | None) -> None:
    text = card("imdb", source)
    assert ModelCard(text).data.get("datasets") == named
    assert "/data" not in text


def test_the_table_of_a_comparison() -> None:
    """Splits that were scored only, the means of seeds, and the runs that failed."""
    scores = {"validation": {name: Spread(value, 0.01) for name, value in SCORES.numbers().items()}}
    row = MixerSummary("a+b", scores, Spread(1234.0, 5.0), Spread(603.0, 1.0), Spread(1000.0, None), 2**20, 5000, 2)
    failed = ComparedRun("softmax", 1, "runs/softmax-1", "there is not enough memory.")
    result = Comparison("mine", "document_classification", ClassificationScores, [], "runs", [failed], [row])
    text = comparison_summary(result)
    for part in ("a+b", "validation", "accuracy", "0.910 ± 0.010", "1,234", "10 min 3 s", "1,000", "1 MiB", "5,000"):
        assert part in text
    assert "test" not in text
    assert text.splitlines()[-1] == "softmax, seed 1, failed: there is not enough memory."


def test_a_wide_comparison_has_a_table_for_each_split_and_one_for_costs() -> None:
    scores = {
        split: {name: Spread(value, 0.01) for name, value in SCORES.numbers().items()}
        for split in ("validation", "test")
    }
    rows = [
        MixerSummary(name, scores, Spread(1234.0, 5.0), Spread(603.0, 1.0), Spread(1000.0, None), 2**20, 5000, 2)
        for name in ("additive+softmax", "relative")
    ]
    result = Comparison("mine", "document_classification", ClassificationScores, [], "runs", [], rows)
    tables = comparison_summary(result).split("\n\n")
    assert [word in table for table, word in zip(tables, ("validation", "test", "seeds"), strict=True)] == [True] * 3
    for table in tables:
        assert max(map(len, table.splitlines())) <= 100
        assert "additive+softmax" in table
        assert "relative" in table
    # Markdown is wrapped where it is shown.
    assert "\n\n" not in comparison_summary(result, "github")


def test_results_flatten_into_json() -> None:
    """Scores by split and details stand beside the fields."""
    written = RESULT.to_dict()
    assert written["validation"] == SCORES.to_dict()
    assert written["labels"] == ["no", "yes|maybe"]
    assert "scores" not in written
    assert "details" not in written
    evaluation = Evaluation("mine", "test", "a.csv", SCORES, {"documents": 3}, {}, "runs")
    assert evaluation.to_dict()["documents"] == 3
    assert evaluation.to_dict()["accuracy"] == 0.91
