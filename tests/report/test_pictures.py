"""Pictures: that they are drawn, at a size that can be read, whatever the names."""

import pytest
from PIL import Image

from longspan.report import pictures

ACCURACY = {"accuracy": "accuracy"}


def drawn(path):
    """Size of a picture, which must not be blank."""
    with Image.open(path) as picture:
        darkest, brightest = picture.convert("L").getextrema()
        assert darkest != brightest
        return picture.size


def test_learning_curve(tmp_path):
    steps = [{"epoch": 0.5, "train_loss": 0.7}, {"epoch": 1.0, "train_loss": 0.6}]
    epochs = [{"epoch": 1.0, "validation_loss": 0.65, "validation_accuracy": 0.6}]
    pictures.learning_curve(steps + epochs, ACCURACY, tmp_path / "curve.png")
    pictures.learning_curve([], ACCURACY, tmp_path / "empty.png")
    assert drawn(tmp_path / "curve.png")[0] > drawn(tmp_path / "curve.png")[1]
    pictures.learning_curve(steps + epochs, {"loss": "nats"}, tmp_path / "loss.png")
    assert drawn(tmp_path / "loss.png")[0] < drawn(tmp_path / "curve.png")[0]


@pytest.mark.parametrize("classes", [2, 30, 60])
def test_confusion_grows_with_the_classes(tmp_path, classes):
    names = [f"a class with a rather long name, the {number}th" for number in range(classes)]
    matrix = [[100 if row == column else row % 3 for column in range(classes)] for row in range(classes)]
    pictures.confusion(matrix, names, tmp_path / "confusion.png")
    width, height = drawn(tmp_path / "confusion.png")
    assert width > 40 * min(classes, 30)
    assert height > 40 * min(classes, 30)


@pytest.mark.parametrize("count", [1, 12])
def test_loss_by_position(tmp_path, count):
    rows = [{"from": 2**n, "to": 2 ** (n + 1) - 1, "tokens": 2**n, "loss": 3 - n / 10} for n in range(count)]
    pictures.loss_by_position(rows, tmp_path / "position.png")
    assert drawn(tmp_path / "position.png")[0] > drawn(tmp_path / "position.png")[1]


def test_pictures_take_any_class_name(tmp_path):
    names = ["$5 to $x_{", "日本語", "%d\n"]
    pictures.confusion([[1, 0, 0], [0, 0, 0], [0, 1, 1]], names, tmp_path / "confusion.png")
    drawn(tmp_path / "confusion.png")
    assert pictures._short("one that differs at its very end: 1") != pictures._short(
        "one that differs at its very end: 2"
    )


def test_calibration(tmp_path):
    bins = [{"from": 0.6, "to": 0.667, "count": 3, "confidence": 0.63, "accuracy": 0.66}]
    pictures.calibration(bins, 0.03, tmp_path / "calibration.png")
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
    pictures.comparison(summary, ACCURACY, tmp_path / "comparison.png")
    drawn(tmp_path / "comparison.png")


def test_comparison_says_which_way_is_better(tmp_path, monkeypatch):
    labels = []

    def save(figure, path):
        labels.append(figure.axes[0].get_ylabel())
        usual(figure, path)

    usual = pictures._save
    monkeypatch.setattr(pictures, "_save", save)
    loss = {"mean": 1.5, "spread": 0.1}
    summary = [{"mixer": "a+b", "test_loss": loss, "tokens_per_second": loss}]
    for lower in (False, True):
        pictures.comparison(summary, {"loss": "nats per token"}, tmp_path / "comparison.png", lower_is_better=lower)
    drawn(tmp_path / "comparison.png")
    assert labels == ["test nats per token", "test nats per token, lower is better"]
