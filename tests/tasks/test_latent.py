"""Directions of texts without labels, and n-gram parts that read labelled documents along them."""

import random
from pathlib import Path

import numpy as np
import pytest
from torch import Tensor

from longspan import recipes
from longspan.tasks.base.mixing import Rows, best_scales
from longspan.tasks.base.ngrams import fitting
from longspan.tasks.base.ngrams.latent import Latent

SUBJECTS = ["sport", "food"]


def text(choose: random.Random, subject: str) -> str:
    # Numbers whose digits say nothing.
    numbers = (400 * SUBJECTS.index(subject) + choose.randrange(400) for _ in range(10))
    return " ".join(str((number + 1) * 7919 % 10007) for number in numbers)


def test_directions_are_the_singular_vectors_of_tfidf_vectors() -> None:
    generator = np.random.default_rng(0)
    texts = [generator.integers(30, size=20) // (1 + number % 3) for number in range(50)]
    found = Latent.of(texts, np.ones(30, bool), 3)
    times = np.stack([np.bincount(ids, minlength=30) for ids in texts])
    weighted = np.where(times, 1 + np.log(times.clip(1)), 0) * found.idf
    weighted /= np.linalg.norm(weighted, axis=1, keepdims=True)
    _, sizes, exact = np.linalg.svd(weighted, full_matrices=False)
    # With 20 directions more than wanted, the iteration spans nearly all of 30: the rest is float32, of sums of 50.
    np.testing.assert_allclose(np.abs(np.sum(found.directions.T * exact[:3], axis=1)), 1, atol=1e-4)
    assert sizes[2] > 1.02 * sizes[3]
    frequent = (times > 0).sum(0)
    np.testing.assert_allclose(found.idf[frequent >= 3], np.log(51 / (1 + frequent[frequent >= 3])))
    assert not found.idf[frequent < 3].any()


def test_few_and_empty_texts_have_few_directions() -> None:
    words = np.array([False, True, True, True, True])
    assert Latent.of([], words, 3).directions.shape == (5, 0)
    assert Latent.of([np.zeros(0, np.int64)], words, 3).directions.shape == (5, 0)
    assert Latent.of([np.array([1, 2, 2])], words, 3).directions.shape == (5, 1)
    # What is no word has no direction.
    assert Latent.of([np.array([0, 0])], words, 3).directions.shape == (5, 0)


@pytest.mark.parametrize(
    ("name", "labels"), [("classify", "label"), ("multi-label", "labels"), ("regression", "label")]
)
def test_words_without_labels_are_understood_by_those_they_go_with(
    tmp_path: Path, name: str, labels: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    anchors: list[list[float]] = []

    def recorded(parts: Tensor, truth: Tensor, losses: Rows, points: Rows, anchor: Tensor, errors: float) -> Tensor:
        anchors.append(anchor.tolist())
        return best_scales(parts, truth, losses, points, anchor, errors)

    monkeypatch.setattr(fitting, "best_scales", recorded)
    choose = random.Random(0)
    targets = {"sport": "1", "food": "2"} if name == "regression" else {each: each for each in SUBJECTS}
    texts = tmp_path / "texts.csv"
    texts.write_text("text\n" + "\n".join(text(choose, choose.choice(SUBJECTS)) for _ in range(2000)) + "\n")
    for split, count in (("train", 20), ("validation", 20), ("test", 200)):
        rows = [f"{text(choose, subject)},{targets[subject]}" for subject in SUBJECTS * (count // 2)]
        (tmp_path / f"{split}.csv").write_text(f"text,{labels}\n" + "\n".join(rows) + "\n")
    given = [f"data.{split}={tmp_path / f'{split}.csv'}" for split in ("train", "validation", "test")]
    losses = {}
    for own in ([], [f"data.unlabelled={texts}"]):
        recipe = recipes.load(name, [*given, *own])
        counts = recipe.task.counts()
        assert counts is not None
        found = counts().fit(recipe)
        assert any("latent" in kind for kind in found.chosen) == bool(own)
        losses[len(own)] = found.scores["test"].to_dict()
        # Kinds are alike, but with texts without labels one of them is trusted most.
        assert all((max(anchor) == 1) == bool(own) for anchor in anchors)
        anchors.clear()
    score = {"classify": "accuracy", "multi-label": "micro_f1", "regression": "r2"}[name]
    assert losses[1][score] > losses[0][score]
    assert losses[1][score] > 0.8
