"""Images of dashed paths."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from longspan.challenges import CHALLENGES
from longspan.challenges.drawing import DASH, GAP, Drawing
from longspan.challenges.pathfinder import matched


@pytest.fixture(scope="module")
def drawings() -> list[Drawing]:
    pairs = matched(random.Random(7))
    return [drawn for _ in range(500) for drawn in next(pairs)]


def test_the_label_says_whether_the_circles_are_ends_of_one_path(drawings: list[Drawing]) -> None:
    for drawn in drawings:
        ends = [{tuple(path[0, 0]), tuple(path[-1, 1])} for path in drawn.paths[:2]]
        centres = [tuple(centre) for centre in drawn.circles]
        owners = [next(place for place, own in enumerate(ends) if centre in own) for centre in centres]
        assert (owners[0] == owners[1]) == drawn.connected
        assert centres[0] != centres[1]


def test_a_path_has_gaps_that_no_other_path_has(drawings: list[Drawing]) -> None:
    """So that a path can be followed: the next dash of the same path is nearer than any dash of another."""
    for drawn in drawings[:200]:
        for path in drawn.paths:
            steps = np.linalg.norm(path[1:, 0] - path[:-1, 1], axis=-1)
            assert (steps <= GAP + 1e-9).all()
            assert np.allclose(np.linalg.norm(path[:, 1] - path[:, 0], axis=-1), DASH)


def test_no_simple_statistic_tells_the_classes(drawings: list[Drawing]) -> None:
    """A linear model of these has at most chance, 0.5, and three standard errors of 1,000 images, 0.047."""
    labels = [drawn.connected for drawn in drawings]
    assert sum(labels) == len(labels) / 2
    images = np.stack([drawn.image for drawn in drawings]).astype(float)
    apart = np.array([np.linalg.norm(drawn.circles[0] - drawn.circles[1]) for drawn in drawings])
    found = [
        images.mean((1, 2)),
        (images > 200).sum((1, 2)),
        (images > 0).sum((1, 2)),
        images.std((1, 2)),
        apart,
        apart**2,
    ]
    model = make_pipeline(StandardScaler(), LogisticRegression())
    assert cross_val_score(model, np.stack(found, 1), labels, cv=5).mean() < 0.547


def test_files(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        CHALLENGES["pathfinder"].write(tmp_path / folder, None, sizes={"train": 6, "validation": 4, "test": 2})
    written = (tmp_path / "a" / "train.jsonl").read_text(encoding="utf-8")
    assert written == (tmp_path / "b" / "train.jsonl").read_text(encoding="utf-8")
    example = json.loads(written.splitlines()[0])
    levels = np.array(example["text"].split(" "), int)
    assert levels.shape == (1024,)
    assert levels.max() == 255
    assert example["label"] in ("0", "1")
