"""Smoothing of labels, against the best path of a chain in `longspan.ops.crf`."""

import numpy as np
import pytest
import torch

from longspan.ops.crf import best_path
from longspan.tasks.frame_labelling import smoothing
from longspan.tasks.frame_labelling.smoothing import PENALTIES, Smoother, paths


def scores(count: int = 200, seed: int = 0) -> np.ndarray:
    """Log-probabilities that often change their mind, (count, 4)."""
    logits = np.random.default_rng(seed).standard_normal((count, 4)) * 3
    return torch.from_numpy(logits).log_softmax(-1).numpy()


def test_it_is_the_best_path_of_a_chain_with_equal_costs() -> None:
    given = scores()
    nothing = torch.zeros(4, dtype=torch.float64)
    for penalty, path in zip(PENALTIES, paths(given, PENALTIES), strict=True):
        transitions = -penalty * (1 - torch.eye(4, dtype=torch.float64))
        wanted = best_path(torch.from_numpy(given)[None], torch.tensor([200]), transitions, nothing, nothing)[0]
        assert path.tolist() == wanted.tolist()
    assert len(np.flatnonzero(np.diff(path))) < len(np.flatnonzero(np.diff(given.argmax(1))))


@pytest.mark.parametrize("size", [1, 7, 64])
def test_blocks_give_the_same_and_keep_little(size: int) -> None:
    given, smoother = scores(), Smoother(4.0)
    labels, kept, most = [], [], 0
    for start in range(0, len(given), size):
        found, own = smoother.add(given[start : start + size])
        labels += found.tolist()
        kept.append(own)
        most = max(most, len(smoother.scores))
    found, own = smoother.end()
    assert [*labels, *found.tolist()] == paths(given, [4.0])[0].tolist()
    np.testing.assert_array_equal(np.concatenate([*kept, own]), given)
    assert most < 40 + size


def test_what_stays_undecided_is_decided_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(smoothing, "MOST", 50)
    smoother = Smoother(1e6)
    found = [smoother.add(row[None])[0] for row in scores()]
    assert len(smoother.scores) == 50
    assert sum(map(len, found)) == 150


def test_nothing_gives_nothing() -> None:
    labels, own = Smoother(1.0).end()
    assert len(labels) == len(own) == 0
