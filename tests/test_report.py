"""Tables, pictures and the model card."""

import pytest
from huggingface_hub import ModelCard
from PIL import Image

from longspan import mixers, recipes, report

SCORES = {"accuracy": 0.91, "macro_f1": 0.905, "calibration_error": 0.03}
ROW = {"documents": 1200, "tokens": 45000, "median_length": 30, "longest": 99, "cut_documents": 7, "removed_tokens": 80}
RESULT = {
    "validation": SCORES,
    "test": SCORES | {"accuracy": 0.89},
    "tokens_per_second": 41234.4,
    "peak_memory_bytes": 300 * 2**20,
    "parameters": 1234567,
    "seconds": 7300.0,
    "labels": ["no", "yes|maybe"],
    "data": {"train": ROW, "test": ROW, "skipped": {}},
}


def drawn(path):
    """Size of a picture, which must not be blank."""
    with Image.open(path) as picture:
        darkest, brightest = picture.convert("L").getextrema()
        assert darkest != brightest
        return picture.size


def test_cells():
    assert report.count(1234567) == "1,234,567"
    assert report.count(None) == "-"
    assert report.size(2**20) == "1 MiB"
    assert report.size(1.5 * 2**30) == "1.50 GiB"
    assert report.duration(3.21) == "3.2 s"
    assert report.duration(119.6) == "2 min 0 s"
    assert report.duration(7300) == "2 h 1 min"
    assert report.spread({"mean": 0.5, "spread": 0.01}) == "0.500 ± 0.010"
    assert report.spread({"mean": 0.5, "spread": None}) == "0.500"


def test_tables_leave_class_names_alone():
    text = report.table(["class", "n"], [["1e5", "1"], ["007", "2"], ["a|b", "3"]], "github")
    assert "1e5" in text
    assert "007" in text
    assert "a\\|b" in text
    assert report.table(["class"], []) == "(nothing)"


def test_mixer_tables_and_pages():
    descriptions = [mixers.describe(name) for name in mixers.names()]
    assert all(entry.cost in report.mixer_table(descriptions) for entry in descriptions)
    assert "interaction" in report.mixer_page(mixers.describe("additive"))


def test_the_training_summary_tells_what_was_cut(tmp_path):
    text = report.training_summary(RESULT, tmp_path)
    for part in ("1,200", "7", "80", "0.890", "41,234 tokens/s", "300 MiB", "2 h 1 min", str(tmp_path)):
        assert part in text


def test_the_model_card_is_one_the_hub_reads():
    card = ModelCard(report.model_card(recipes.load("imdb"), RESULT))
    meta, body = card.data.to_dict(), card.text
    assert meta["library_name"] == "transformers"
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
    assert "read whole" in report.model_card(recipes.load("movie-reviews"), RESULT)


def test_learning_curve(tmp_path):
    steps = [{"epoch": 0.5, "train_loss": 0.7}, {"epoch": 1.0, "train_loss": 0.6}]
    epochs = [{"epoch": 1.0, "validation_loss": 0.65, "validation_accuracy": 0.6}]
    report.learning_curve(steps + epochs, tmp_path / "curve.png")
    report.learning_curve([], tmp_path / "empty.png")
    assert drawn(tmp_path / "curve.png")[0] > drawn(tmp_path / "curve.png")[1]


@pytest.mark.parametrize("classes", [2, 30, 60])
def test_confusion_grows_with_the_classes(tmp_path, classes):
    names = [f"a class with a rather long name, the {number}th" for number in range(classes)]
    matrix = [[100 if row == column else row % 3 for column in range(classes)] for row in range(classes)]
    report.confusion_picture(matrix, names, tmp_path / "confusion.png")
    width, height = drawn(tmp_path / "confusion.png")
    assert width > 40 * min(classes, 30)
    assert height > 40 * min(classes, 30)


def test_pictures_take_any_class_name(tmp_path):
    names = ["$5 to $x_{", "日本語", "%d\n"]
    report.confusion_picture([[1, 0, 0], [0, 0, 0], [0, 1, 1]], names, tmp_path / "confusion.png")
    drawn(tmp_path / "confusion.png")
    assert report._short("one that differs at its very end: 1") != report._short("one that differs at its very end: 2")


def test_calibration(tmp_path):
    bins = [{"from": 0.6, "to": 0.667, "count": 3, "confidence": 0.63, "accuracy": 0.66}]
    report.calibration_picture(bins, 0.03, tmp_path / "calibration.png")
    drawn(tmp_path / "calibration.png")


@pytest.mark.parametrize("fastest", [2000.0, 200000.0])
def test_comparison(tmp_path, fastest):
    summary = [
        {
            "mixer": name,
            "validation_accuracy": {"mean": 0.8, "spread": spread},
            "tokens_per_second": {"mean": speed, "spread": spread},
        }
        for name, speed, spread in (("additive", fastest, 0.1), ("softmax", 1000.0, None))
    ]
    report.comparison_picture(summary, tmp_path / "comparison.png")
    drawn(tmp_path / "comparison.png")
