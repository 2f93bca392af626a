"""The CRF over hand-made features: its gradients and optimum, its features of words and of tokens, and combinations."""

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file

from longspan import evaluate, predict, recipes, train
from longspan.data.text.processor import tokenizer_of
from longspan.models.parts.losses import IGNORED
from longspan.models.wide.chain import FOLDS, WideChain
from longspan.ops.crf import naive_paths
from longspan.ops.words import NOTHING
from longspan.results.parts import BOTH, COUNTS, NETWORK, Parts
from longspan.tasks.token_classification import combining, fitted_chain
from longspan.tasks.token_classification.baselines import crf
from longspan.tasks.token_classification.fitted_chain import _renumbered, chosen, cross_fitted

NAMES = ["O", "B-A", "I-A"]
ALLOWED = np.array([[True, True, False], [True, True, True], [True, True, True]])
SMALL = ["model.dim=16", "model.heads=2", "model.feed_forward_dim=32", "model.word_buckets=256", "data.vocab_size=300"]


def sentences(count: int, size: int, features: int) -> fitted_chain.LabelledWords:
    random = np.random.default_rng(0)
    words, labels = [], []
    for _ in range(count):
        before = 0
        for _ in range(size):
            label = int(random.choice(np.flatnonzero(ALLOWED[before])))
            # One of the features tells the label most of the time.
            own = label if random.random() < 0.7 else random.integers(3)
            words.append([own, 3 + random.integers(features - 3), -1])
            labels.append(label)
            before = label
    starts = np.arange(count + 1) * size
    return fitted_chain.LabelledWords(np.array(words, np.int32), np.array(labels, np.int32), starts.astype(np.int64))


def loss_of(words: fitted_chain.LabelledWords, weights: torch.Tensor, transitions: torch.Tensor) -> torch.Tensor:
    """Return the negative log-likelihood, from all paths one by one."""
    total = torch.zeros((), dtype=torch.float64)
    barred = torch.from_numpy(np.where(ALLOWED, 0.0, -1e4))
    for start, end in itertools.pairwise(words.starts):
        scores = torch.stack([weights[[f for f in row if f >= 0]].sum(0) for row in words.features[start:end].tolist()])
        found, totals = naive_paths(scores, transitions + barred, torch.zeros(3), torch.zeros(3))
        right = (found == torch.from_numpy(words.labels[start:end].astype(np.int64))).all(1)
        total = total + totals.logsumexp(0) - totals[right][0]
    return total


def test_a_step_follows_the_gradient() -> None:
    decay = 0.5
    random = np.random.default_rng(1)
    pairs = [(feature, label) for feature in range(6) for label in range(3)]
    weights = random.normal(size=18).astype(np.float32)
    transitions = np.where(ALLOWED, random.normal(size=(3, 3)), 0.0)
    squares, between_squares = np.ones(18, np.float32), np.ones((3, 3))
    after, after_between = weights.copy(), transitions.copy()
    # Of each feature there is one word, so that its whole penalty is taken at once.
    features = np.array([[0, 1, 2], [3, -1, -1], [4, 5, -1], [-1, -1, -1]], np.int32)
    once = fitted_chain.LabelledWords(features, np.array([1, 2, 0, 0], np.int32), np.array([0, 4]))
    own = torch.from_numpy(weights.astype(np.float64).reshape(6, 3)).requires_grad_()
    between = torch.from_numpy(transitions.copy()).requires_grad_()
    wanted = loss_of(once, own, between)
    (wanted + decay / 2 * (own.square().sum() + between.square().sum())).backward()
    assert own.grad is not None
    assert between.grad is not None
    found = fitted_chain._descend(
        np.array([0]), once.starts, once.features, once.labels, np.arange(7) * 3,
        np.array([label for _, label in pairs], np.int16), np.ones(6, np.float32), decay,
        after, squares, after_between, between_squares, ALLOWED, 0.0, 0,
    )  # fmt: skip
    assert found == pytest.approx(wanted.item(), rel=1e-5)
    for gradient, sums, moved in (
        (own.grad.numpy().ravel(), squares, after - weights),
        (between.grad.numpy() * ALLOWED, between_squares, after_between - transitions),
    ):
        # Weights are in float32.
        np.testing.assert_allclose(sums, 1 + gradient**2, rtol=1e-4)
        np.testing.assert_allclose(moved, -fitted_chain._RATE * gradient / np.sqrt(1 + gradient**2), atol=1e-4)
    assert not after_between[~ALLOWED].any()


def test_a_step_without_some_features_is_that_of_the_others() -> None:
    """Each word lacks about the given share of its features: those are as if they were not there."""
    words, pairs = sentences(200, 6, 40), [(feature, label) for feature in range(40) for label in range(3)]

    def step(features: np.ndarray, dropout: float) -> np.ndarray:
        weights = np.zeros(120, np.float32)
        order, first = np.array([0]), np.arange(41) * 3
        fitted_chain._descend(
            order, words.starts[:2], features, words.labels[:6], first, np.array([b for _, b in pairs], np.int16),
            np.ones(40, np.float32), 0.0, weights, np.ones(120, np.float32), np.zeros((3, 3)), np.ones((3, 3)),
            np.ones_like(ALLOWED), dropout, 3,
        )  # fmt: skip
        return weights.reshape(40, 3)

    features = np.arange(36, dtype=np.int32).reshape(6, 6)
    moved = step(features, 0.3)
    left_out = np.isin(features, np.flatnonzero(moved.any(1)), invert=True)
    assert 4 < left_out.sum() < 18
    assert np.array_equal(step(np.where(left_out, -1, features).astype(np.int32), 0.0), moved)
    assert not step(features, 1.0).any()


def test_the_rarest_features_are_left_out() -> None:
    hashes = np.array([[5, NOTHING, 9], [5, 7, 8], [6, 7, 1]])
    keys, features = _renumbered(hashes, 3)
    # Of the rare ones, that of the first column.
    assert keys.tolist() == [5, 6, 7]
    assert features.tolist() == [[0, -1, -1], [0, 2, -1], [1, 2, -1]]
    assert _renumbered(hashes, 99)[0].tolist() == [1, 5, 6, 7, 8, 9]


def test_a_fit_is_as_good_as_that_of_crfsuite() -> None:
    pycrfsuite = pytest.importorskip("pycrfsuite")
    words, penalty = sentences(300, 6, 40), 0.5
    trainer = pycrfsuite.Trainer(verbose=False)
    trainer.set_params({"c2": penalty, "max_iterations": 500})
    for start, end in itertools.pairwise(words.starts):
        rows = [[str(feature) for feature in row if feature >= 0] for row in words.features[start:end].tolist()]
        trainer.append(rows, [NAMES[label] for label in words.labels[start:end]])
    # Its labels may follow each other in any order.
    everything = np.ones_like(ALLOWED)
    fitted = fitted_chain.fit(words, 40, everything, penalty)
    again = fitted_chain.fit(words, 40, everything, penalty)
    assert np.array_equal(fitted.of_features, again.of_features)
    scores = torch.from_numpy(fitted.of_features)[torch.from_numpy(words.features[:, :2].astype(np.int64))].sum(1)
    gold = torch.from_numpy(words.labels.astype(np.int64)).view(300, 6)
    zeros = torch.zeros(3)
    losses = combining.path_losses(
        scores.view(300, 6, 3), gold, torch.full((300,), 6), torch.from_numpy(fitted.transitions), zeros, zeros
    )
    size = np.square(fitted.of_features).sum() + np.square(fitted.transitions).sum()
    objective = float(losses.sum()) + penalty * float(size)
    with tempfile.TemporaryDirectory() as folder:
        trainer.train(f"{folder}/model")
    best = trainer.logparser.last_iteration["loss"]
    # Fifteen passes leave a hundredth.
    assert best * 0.999 < objective < best * 1.02


def write_columns(path: Path, count: int, first: int = 0) -> Path:
    lines = []
    for number in range(first, first + count):
        name = ["Rome", "Köln", "Oslo"][number % 3] + str(number % 7)
        lines += [f"{name} B-LOC", "City I-LOC", f"is{number % 5} O", "old O", ""]
        lines += ["Mr O", f"{'ABC'[number % 3]}nna{number % 4} B-PER", ". O", ""]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    folder = tmp_path_factory.mktemp("columns")
    recipe: Any = recipes.load("ner", [f"data.path={write_columns(folder / 'train.txt', 60)}", *SMALL])
    return recipe, recipe.task.prepare(recipe)


def test_tokens_have_the_features_of_their_words(prepared: tuple[Any, Any]) -> None:
    recipe, ready = prepared
    tokenizer = tokenizer_of(ready.processor)
    begins, spelling = map(torch.from_numpy, (crf.word_starts(tokenizer), crf.letters(tokenizer)))
    names = list(ready.config["id2label"].values())
    reader = WideChain(0, len(names), len(tokenizer))
    reader.spelling.copy_(spelling)
    documents = crf.read_documents(recipe.data)
    split = documents.loaded.splits["train"]
    wanted = crf._of_words(list(crf._sentences(split)), [], documents.names)
    found = crf._of_tokens(reader, begins, ready.splits["train"], False)
    order = np.lexsort(wanted.hashes.T[::-1])
    assert np.array_equal(found.hashes[np.lexsort(found.hashes.T[::-1])], wanted.hashes[order])
    assert sorted(found.sizes) == sorted(wanted.sizes)
    assert np.array_equal(np.bincount(found.labels), np.bincount(wanted.labels))
    assert {*found.folds.tolist()} == set(range(FOLDS))


def test_weights_without_a_fold_know_nothing_of_it(prepared: tuple[Any, Any]) -> None:
    recipe, _ = prepared
    documents = crf.read_documents(recipe.data)
    hashed = crf._of_words(list(crf._sentences(documents.loaded.splits["train"])), [], documents.names)
    folds = np.arange(len(hashed.sizes)) % FOLDS
    training = crf.HashedSentences(hashed.hashes, hashed.labels, hashed.sizes, folds)
    found = chosen(training, None, documents.names)
    assert (found.penalty, found.dropout) == (1.0, 0.3)
    held_out = cross_fitted(training, found, documents.names)
    assert np.all(np.diff(found.keys) > 0)
    for fold in range(FOLDS):
        inside = np.repeat(folds == fold, hashed.sizes)
        others = np.isin(found.keys, hashed.hashes[~inside])
        assert held_out[fold].abs().sum(1).bool().numpy().tolist() == others.tolist()
        assert not others.all()
    # In a single fold, there are no others to learn from.
    single = crf.HashedSentences(hashed.hashes, hashed.labels, hashed.sizes, 0 * folds)
    assert not cross_fitted(single, found, documents.names).any()


def test_counts_alone_are_the_baseline(prepared: tuple[Any, Any], tmp_path: Path) -> None:
    recipe, ready = prepared
    model = recipe.task.build_model(recipe, ready)
    assert model.wide is not None
    again = recipe.task.build_model(recipe, ready)
    assert all(torch.equal(one, other) for one, other in zip(model.wide.buffers(), again.wide.buffers(), strict=True))
    fitted = crf.Crf().fit(recipe)
    assert fitted.scores["validation"].f1 > 0.9
    model.eval().wide.scales.copy_(torch.tensor([1.0, 0.0]))
    right = total = 0
    for row in ready.splits["validation"]:
        ids = torch.tensor([row["input_ids"]])
        found = model(ids, sentence_ids=torch.tensor([row["sentence_ids"]])).tags[0]
        for tag, label in zip(found.tolist(), row["labels"], strict=True):
            if label != IGNORED:
                right, total = right + (tag == label), total + 1
    assert right / total == fitted.scores["validation"].accuracy


def said(parts: torch.Tensor, labels: torch.Tensor, sizes: list[int]) -> combining.WordScores:
    return combining.WordScores(parts, labels, torch.tensor(sizes), torch.arange(len(parts)), len(parts))


def test_scales_have_the_highest_likelihood(prepared: tuple[Any, Any]) -> None:
    recipe, ready = prepared
    model = recipe.task.build_model(recipe, ready)
    generator = torch.Generator().manual_seed(0)
    words, labels = 4000, len(model.chain.names)
    model.wide.transitions.zero_()
    gold = torch.zeros(words, dtype=torch.long)
    gold[torch.rand(words, generator=generator) < 0.5] = model.chain.names.index("B-LOC")
    truth = torch.nn.functional.one_hot(gold, labels).float()
    noise = torch.randn(words, 2, labels, generator=generator)
    # The first part is far too sure; the second knows nothing.
    parts = torch.stack((8 * truth + 8 * noise[:, 0], noise[:, 1]), 1)
    found = combining.best_scales(model, said(parts, gold, [4] * 1000))
    assert 0.05 < found[0] < 0.4
    assert found[1] < 0.05
    nothing = said(parts, torch.full_like(gold, IGNORED), [4] * 1000)
    assert torch.equal(combining.best_scales(model, nothing), torch.tensor([1.0, 0.0]))


def test_scores_of_parts_are_those_of_spans_and_words() -> None:
    gold = [(0, ["B-A", "I-A", "O"]), (0, ["O", "B-A"]), (1, ["B-A"])]
    given: dict[str, Any] = {
        COUNTS: [["B-A", "O", "O"], ["O", "B-A"], ["O"]],
        NETWORK: [["B-A", "I-A", "O"], ["O", "O"], ["O"]],
        BOTH: [["B-A", "I-A", "O"], ["O", "B-A"], ["B-A"]],
    }
    found = combining.parts_of(gold, given, plain=False)
    assert found.values == {COUNTS: 2 / 5, NETWORK: 2 / 4, BOTH: 1.0}
    assert combining.parts_of(gold, given, plain=True).values == {COUNTS: 4 / 6, NETWORK: 4 / 6, BOTH: 1.0}


def test_a_run_with_both_parts(tmp_path: Path) -> None:
    for split, number, first in (("train", 60, 0), ("dev", 12, 60), ("test", 12, 72)):
        write_columns(tmp_path / f"{split}.txt", number, first)
    overrides = [f"data.path={tmp_path}", *SMALL, "training.num_train_epochs=2", "training.batch_tokens=128"]
    train(recipes.load("ner", overrides), run=tmp_path / "run", progress=False)
    kept = json.loads((tmp_path / "run/metrics.json").read_text())
    assert Parts.from_dict(kept["parts"]).values[BOTH] == pytest.approx(kept["validation"]["f1"])
    result = evaluate(tmp_path / "run")
    parts = Parts.from_dict(result.details["parts"])
    assert parts.values[BOTH] == pytest.approx(result.scores.f1)
    assert parts.values[COUNTS] > 0.9
    (row,) = predict(tmp_path / "run", Dataset.from_dict({"tokens": [["Mr", "Anna1", "."]]}))
    assert row.labels == ["O", "B-PER", "O"]
    train(recipes.load("ner", [*overrides, "model.wide=false"]), run=tmp_path / "without", progress=False)
    assert "parts" not in json.loads((tmp_path / "without/metrics.json").read_text())


def test_a_run_with_more_epochs_continues_with_the_same_wide_part(tmp_path: Path) -> None:
    for split, number, first in (("train", 30, 0), ("dev", 6, 60)):
        write_columns(tmp_path / f"{split}.txt", number, first)
    overrides = [f"data.path={tmp_path}", *SMALL, "training.max_minutes=2", "training.num_train_epochs=1"]
    train(recipes.load("ner", overrides), run=tmp_path / "run", progress=False)
    before = load_file(tmp_path / "run/model.safetensors")
    train(tmp_path / "run", ["training.num_train_epochs=2"], resume=True, progress=False)
    after = load_file(tmp_path / "run/model.safetensors")
    assert len(before["wide.keys"]) > 100
    for name in ("keys", "weight", "transitions", "spelling"):
        assert torch.equal(before[f"wide.{name}"], after[f"wide.{name}"])
