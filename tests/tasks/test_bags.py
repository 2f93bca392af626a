"""Baselines of document tasks: bags of n-grams with linear models."""

import json
import math

import numpy as np
import pytest
import torch

from longspan import recipes, tasks
from longspan.tasks.base.baselines import bags
from longspan.tasks.base.baselines.bags import class_logits, classes_against_the_rest
from longspan.tasks.document_classification.baselines.nb import _log_ratio
from longspan.verbs import fitting

WORDS = {"cat": "purr meow", "dog": "bark wag", "cow": "moo chew"}


def rows(kinds=("cat", "dog", "cow"), count=120):
    """Documents that one word gives away; half of them have it in an order of words of its own."""
    for number in range(count):
        kind = kinds[number % len(kinds)]
        filler = [f"word{(number * 7 + i * i) % 23}" for i in range(3 + number % 5)]
        yield kind, " ".join([*filler, WORDS[kind].split()[number % 2], "."]), number


def fitted(recipe, name, path, *overrides):
    found = fitting.recipe_of(recipes.load(recipe, [f"data.path={path}", "data.test_fraction=0.2", *overrides]))
    return found.task.baselines()[name]().fit(found)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tfidf", "nb"])
@pytest.mark.parametrize("kinds", [("cat", "dog"), ("cat", "dog", "cow")])
def test_classes(tmp_path, name, kinds):
    path = tmp_path / "animals.jsonl"
    path.write_text("\n".join(json.dumps({"text": text, "label": kind}) for kind, text, _ in rows(kinds)))
    found = fitted("classify", name, path, "data.max_length=2")
    assert set(found.scores) == {"validation", "test"}
    # Documents are read whole, whatever models of the recipe read of them.
    assert found.scores["test"].accuracy == 1
    assert found.scores["test"].loss < 0.5
    assert list(found.scores["test"].per_class) == sorted(kinds)
    assert found.parameters > 100
    assert found.chosen["C"] in (*bags.STRENGTHS, 0.03, 0.1, 0.3, 3.0)
    again = fitted("classify", name, path)
    assert again.scores == found.scores


def test_labels_have_thresholds_from_the_validation_split(tmp_path):
    path = tmp_path / "animals.jsonl"
    lines = [{"text": text, "labels": [kind] + ["odd"] * (n % 2)} for kind, text, n in rows()]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = fitted("multi-label", "tfidf", path)
    assert found.scores["test"].mean_average_precision > 0.9
    per_label = found.scores["validation"].per_label
    assert {row["threshold"] for row in per_label.values()} != {0.5}
    tests = found.scores["test"].per_label
    assert [row["threshold"] for row in tests.values()] == [row["threshold"] for row in per_label.values()]


def test_numbers_have_the_unit_of_the_data(tmp_path):
    path = tmp_path / "animals.jsonl"
    values = {"cat": 1000.0, "dog": 3000.0, "cow": 9000.0}
    lines = [{"text": text, "label": values[kind]} for kind, text, _ in rows()]
    path.write_text("\n".join(map(json.dumps, lines)))
    found = fitted("regression", "tfidf", path, "data.label_column=label")
    assert found.scores["test"].mae < 0.3 * found.scores["test"].baseline["mae"]
    assert found.scores["test"].r2 > 0.9


def test_log_ratios_are_those_of_the_paper():
    from scipy.sparse import csr_matrix

    grams = csr_matrix(np.array([[1, 0, 1], [1, 1, 0], [0, 1, 0], [0, 1, 0]], dtype=np.float32))
    found = _log_ratio(grams, np.array([True, True, False, False]))
    p, q = np.array([3, 2, 2]), np.array([1, 3, 1])
    np.testing.assert_allclose(found, np.log((p / 7) / (q / 5)), rtol=1e-6)


def test_n_grams_of_words_and_punctuation():
    matrices, sizes = bags.presence({"train": ["Not good! Not", "good"], "test": ["not good not"]}, 2)
    # not, good, !; not good, good !, ! not
    assert sorted(sizes.tolist()) == [1, 1, 1, 2, 2, 2]
    assert np.asarray(matrices["train"].sum(1)).ravel().tolist() == [6, 1]
    # "good not" is new.
    assert np.asarray(matrices["test"].sum(1)).ravel().tolist() == [3]


def test_probabilities_are_those_of_each_class_divided_by_their_sum():
    odds = [{"test": np.array([0.3, -40.0])}, {"test": np.array([-1.0, -40.0])}, {"test": np.array([2.0, 0.0])}]
    shares = class_logits(odds)["test"].double().softmax(-1)
    each = 1 / (1 + np.exp(-np.stack([row["test"] for row in odds], -1)))
    np.testing.assert_allclose(shares, each / each.sum(-1, keepdims=True), rtol=1e-5)
    two = class_logits(odds[:1])["test"].double().softmax(-1)[:, 1]
    np.testing.assert_allclose(two, each[:, 0], rtol=1e-5)
    assert [truth.tolist() for truth in classes_against_the_rest(torch.tensor([0, 1]), 2)] == [[False, True]]


def test_a_label_that_all_documents_have_is_certain_but_for_half_a_document():
    features = {"train": np.zeros((3, 1)), "test": np.zeros((2, 1))}
    found = bags.log_odds(features, np.array([True] * 3), 1.0, 0)
    assert found["test"].tolist() == [math.log(3.5 / 0.5)] * 2


def test_characters_are_tried_where_documents_are_few(monkeypatch):
    texts = {"train": ["one two", "three"], "test": ["four"]}
    assert [name for name, _ in bags.tfidf(texts)] == ["words, pairs", "words, pairs, 2 to 5 characters"]
    monkeypatch.setattr(bags, "MOST_CHARACTERS", 5)
    assert [name for name, _ in bags.tfidf(texts)] == ["words, pairs"]


def test_names_are_known_without_importing_anything():
    for task in tasks.names():
        assert sorted(tasks.load(task).baselines()) == tasks.baseline_names(task)
        for kind in tasks.load(task).baselines().values():
            assert kind.summary().endswith(".")
