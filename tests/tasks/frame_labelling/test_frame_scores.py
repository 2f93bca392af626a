"""Scores of labelled frames, against torchmetrics, and against edit distances by their recursion."""

import functools

import numpy as np
import pytest
import torch
from torchmetrics.functional import classification

from longspan import UserError
from longspan.tasks.frame_labelling.prediction import Segmenter
from longspan.tasks.frame_labelling.scores import edit_counts, frame_scores, merged

NAMES = ["silence", "a", "b", "c"]


def distance(one: tuple[int, ...], other: tuple[int, ...]) -> int:
    @functools.cache
    def between(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        replaced = between(i - 1, j - 1) + (one[i - 1] != other[j - 1])
        return min(replaced, between(i - 1, j) + 1, between(i, j - 1) + 1)

    return between(len(one), len(other))


def test_edits_are_those_of_the_shortest_distance() -> None:
    random = np.random.default_rng(0)
    for _ in range(50):
        one, other = (random.integers(1, 4, random.integers(0, 9)) for _ in range(2))
        substitutions, deletions, insertions = edit_counts(one, other)
        assert substitutions + deletions + insertions == distance(tuple(one), tuple(other))
        assert insertions - deletions == len(other) - len(one)


def test_frames_are_scored_as_by_torchmetrics() -> None:
    random = np.random.default_rng(1)
    right, found = ([random.integers(0, 4, size) for size in (30, 50)] for _ in range(2))
    scores = frame_scores(right, found, NAMES)
    one, other = (torch.from_numpy(np.concatenate(each)) for each in (found, right))
    assert scores.accuracy == pytest.approx(float((one == other).float().mean()))
    assert scores.macro_f1 == pytest.approx(float(classification.multiclass_f1_score(one, other, 4, average="macro")))
    assert scores.confusion == classification.multiclass_confusion_matrix(one, other, 4).tolist()
    assert type(scores).from_dict(scores.to_dict()) == scores


def test_segments_are_merged_without_what_is_outside() -> None:
    labels = np.array([0, 1, 1, 2, 0, 2, 2, 0, 0])
    assert merged(labels).tolist() == [1, 2, 2]
    scores = frame_scores([labels], [np.array([1, 1, 1, 2, 2, 2, 2, 3, 0])], NAMES)
    # One 2 is a 3.
    assert (scores.segments, scores.substitutions, scores.deletions, scores.insertions) == (3, 1, 0, 0)
    assert scores.segment_error == pytest.approx(1 / 3)
    assert frame_scores([np.zeros(4, int)], [np.array([0, 1, 0, 2])], NAMES).segment_error == 2


def test_there_must_be_frames() -> None:
    with pytest.raises(UserError, match="expected at least one recording with frames"):
        frame_scores([], [], NAMES)


@pytest.mark.parametrize("size", [1, 3, 10])
def test_segments_of_positions(size: int) -> None:
    labels = np.array([1, 1, 0, 2, 3, 3, 3, 0, 0, 2])
    scores = np.log(np.where(np.eye(4)[labels] == 1, 0.7, 0.1))
    segmenter, found = Segmenter(NAMES, 0.1, 0.05), []
    for start in range(0, len(labels), size):
        found += segmenter.add(labels[start : start + size], scores[start : start + size])
    found += segmenter.end(1.2)
    told = [(one["start"], one["end"], one["label"]) for one in found]
    assert told == [(0.0, 0.25, "a"), (0.35, 0.45, "b"), (0.45, 0.75, "c"), (0.95, 1.2, "b")]
    assert {one["confidence"] for one in found} == {0.7}
