"""Pictures of a classifier's scores, whatever its classes are called."""

from pathlib import Path

import pytest
from drawing import drawn

from longspan.report.calibration import calibration
from longspan.report.confusion import confusion
from longspan.report.pictures import shortened


@pytest.mark.slow
@pytest.mark.parametrize("classes", [2, 30, 60])
def test_confusion_grows_with_the_classes(tmp_path: Path, classes: int) -> None:
    names = [f"a class with a rather long name, the {number}th" for number in range(classes)]
    matrix = [[100 if row == column else row % 3 for column in range(classes)] for row in range(classes)]
    confusion(matrix, names, tmp_path / "confusion.png")
    width, height = drawn(tmp_path / "confusion.png")
    assert width > 40 * min(classes, 30)
    assert height > 40 * min(classes, 30)


def test_pictures_take_any_class_name(tmp_path: Path) -> None:
    names = ["$5 to $x_{", "日本語", "%d\n"]
    confusion([[1, 0, 0], [0, 0, 0], [0, 1, 1]], names, tmp_path / "confusion.png")
    drawn(tmp_path / "confusion.png")
    assert shortened("one that differs at its very end: 1") != shortened("one that differs at its very end: 2")


def test_calibration(tmp_path: Path) -> None:
    bins = [{"from": 0.6, "to": 0.667, "count": 3, "confidence": 0.63, "accuracy": 0.66}]
    calibration(bins, 0.03, tmp_path / "calibration.png")
    drawn(tmp_path / "calibration.png")
