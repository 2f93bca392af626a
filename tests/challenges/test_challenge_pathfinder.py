"""Pathfinder: what is drawn agrees with the labels, and nothing simpler tells them."""

import itertools

import numpy as np
import pytest
from PIL import Image, ImageDraw
from scipy import ndimage
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import PolynomialFeatures, StandardScaler

from longspan.challenges import drawing
from longspan.challenges.base import stream
from longspan.challenges.drawing import Drawing, draw
from longspan.challenges.pathfinder import _row, matched

NUMBER = 240
SCALE = 8


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Drawing, Drawing]]:
    return list(itertools.islice(matched(stream(0, "test")), NUMBER // 2))


@pytest.fixture(scope="module")
def drawings(pairs: list[tuple[Drawing, Drawing]]) -> list[Drawing]:
    return [each for pair in pairs for each in pair]


def apart(each: Drawing) -> float:
    return float(np.linalg.norm(each.circles[0] - each.circles[1]))


@pytest.mark.slow
def test_filling_the_paths_agrees_with_the_labels(drawings: list[Drawing]) -> None:
    for each in drawings[:200]:
        # The paths without gaps, on a finer grid; Pillow wants (x, y).
        fine = Image.new("1", (drawing.SIDE * SCALE, drawing.SIDE * SCALE))
        for path in each.paths:
            points = (path.reshape(-1, 2)[:, ::-1] * SCALE).round().astype(int)
            ImageDraw.Draw(fine).line([tuple(point) for point in points.tolist()], fill=1, width=3)
        filled, number = ndimage.label(np.asarray(fine), np.ones((3, 3)))
        assert number == len(each.paths)
        at = [filled[tuple((circle * SCALE).round().astype(int))] for circle in each.circles]
        assert min(at) > 0
        assert (at[0] == at[1]) == each.connected


@pytest.mark.slow
def test_all_images_have_the_same_parts(drawings: list[Drawing]) -> None:
    for each in drawings:
        assert [len(path) for path in each.paths] == [14, 14, 4, 4, 4, 4, 4]
        lengths = np.linalg.norm(np.concatenate(each.paths)[:, 1] - np.concatenate(each.paths)[:, 0], axis=1)
        np.testing.assert_allclose(lengths, drawing.DASH, rtol=1e-9)
        assert each.image.shape == (32, 32)
        assert each.image.dtype == np.uint8
        # The brightest pixels are the circles' own.
        assert each.image.max() == 255


@pytest.mark.slow
def test_dashes_are_clear_of_each_other(drawings: list[Drawing]) -> None:
    steps = np.linspace(0, 1, 9)
    for each in drawings[:100]:
        dashes = np.concatenate(each.paths)
        path = np.repeat(np.arange(len(each.paths)), [len(path) for path in each.paths])
        points = dashes[:, 0, None] + steps[:, None] * (dashes[:, 1] - dashes[:, 0])[:, None]
        away = np.linalg.norm(points[:, None, :, None] - points[None, :, None], axis=-1).min((2, 3))
        one, other = np.triu_indices(len(dashes), 1)
        follows = (path[one] == path[other]) & (other == one + 1)
        assert away[one, other][~follows].min() >= drawing.CLEAR - 1e-9
        # As far as the gap where the path is straight, and nearer where it turns.
        gaps = np.linalg.norm(dashes[one[follows], 1] - dashes[other[follows], 0], axis=1)
        assert gaps.max() <= drawing.GAP + 1e-9
        assert gaps.min() >= drawing.GAP / np.sqrt(2) - 1e-9


def test_a_dash_is_painted_where_it_is() -> None:
    dashes = np.full((drawing._TOTAL, 2, 2), 20.5)
    dashes[:, 1, 1] = 22.5
    dashes[0] = [[10.5, 5.5], [10.5, 7.5]]
    image = np.zeros((32, 32))
    drawing._paint(dashes, np.array([[5.0, 5.0], [25.0, 25.0]]), image)
    # Half a pixel wide, so half as bright.
    np.testing.assert_allclose(image[10, 5:8], drawing.WIDTH * drawing.LONG_LIGHT)
    assert image[11, 6] == image[9, 6] == image[10, 9] == 0
    np.testing.assert_allclose(image[20, 20:23], 1)
    assert (image[4:6, 4:6] == 1).all()
    assert image.max() == 1


@pytest.mark.slow
def test_pairs_are_of_both_labels_with_circles_at_the_same_distances(pairs: list[tuple[Drawing, Drawing]]) -> None:
    for one, other in pairs:
        assert one.connected != other.connected
        assert round(apart(one)) == round(apart(other))
        middle = [np.linalg.norm(each.circles - 16, axis=1) for each in (one, other)]
        np.testing.assert_allclose(middle[0], middle[1], atol=2)
    # The first of a pair is positive half the time, within four standard deviations.
    assert abs(np.mean([one.connected for one, _ in pairs]) - 0.5) < 4 * 0.5 / len(pairs) ** 0.5


@pytest.mark.slow
def test_simple_statistics_do_not_tell_the_labels(drawings: list[Drawing]) -> None:
    images = np.stack([each.image for each in drawings]).astype(float)
    circles = np.stack([each.circles for each in drawings])
    statistics = np.column_stack([
        images.mean((1, 2)), images.std((1, 2)), (images > 128).sum((1, 2)), (images > 250).sum((1, 2)),
        [apart(each) for each in drawings], *(np.linalg.norm(circles - 16, axis=2).T),
    ])  # fmt: skip
    labels = [each.connected for each in drawings]
    model = make_pipeline(StandardScaler(), PolynomialFeatures(2), LogisticRegression(C=0.1, max_iter=1_000))
    accuracy = cross_val_score(model, statistics, labels, cv=10).mean()
    # Guessing is within three standard deviations of one half with a probability of 99.9 %.
    assert accuracy < 0.5 + 3 * 0.5 / NUMBER**0.5


def test_the_text_is_the_image() -> None:
    drawn = draw(np.array([1], np.uint64))
    row = _row(drawn)
    levels = np.array(row["text"].split(" "), int).reshape(32, 32)
    np.testing.assert_array_equal(levels, drawn.image)
    assert row["label"] == str(int(drawn.connected))
    np.testing.assert_array_equal(draw(np.array([1], np.uint64)).image, drawn.image)
    assert (draw(np.array([2], np.uint64)).image != drawn.image).any()
