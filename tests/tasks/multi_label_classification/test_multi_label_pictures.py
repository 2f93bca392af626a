"""The picture of precision and recall, for any labels."""

from pathlib import Path

import numpy as np
import pytest
import torch
from drawing import drawn

from longspan.tasks.multi_label_classification.scores import multi_label_scores
from longspan.tasks.multi_label_classification.task import draw_precision_recall


@pytest.mark.parametrize("labels", [1, 3, 20])
def test_the_most_frequent_labels_are_drawn(labels: int, tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    truth = random.random((80, labels)) < np.linspace(0.5, 0, labels)
    logits = random.normal(size=truth.shape) + truth
    names = ["_hidden", "$5 to $x_{", "日本語", *(f"a label with quite a long name, number {n}" for n in range(20))][
        :labels
    ]
    scores = multi_label_scores(torch.tensor(logits), torch.tensor(truth).float(), names, [0.5] * labels)
    draw_precision_recall(logits, truth, names, scores, tmp_path / "curves.png")
    drawn(tmp_path / "curves.png")


def test_no_label_occurs(tmp_path: Path) -> None:
    scores = multi_label_scores(torch.zeros(2, 2), torch.zeros(2, 2), ["a", "b"], [0.5] * 2)
    draw_precision_recall(np.zeros((2, 2)), np.zeros((2, 2), dtype=bool), ["a", "b"], scores, tmp_path / "c.png")
    drawn(tmp_path / "c.png")
