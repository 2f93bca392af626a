"""Choice among fitted models by the validation split, and linear models of whole documents, such as of bags of n-grams.

Baselines of tasks with one answer for each example share the first, those of documents all of it.
"""

import abc
import math
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import logsigmoid

from longspan.data.columns.kinds import Text
from longspan.data.columns.values import composed
from longspan.models import LongspanConfig
from longspan.tasks.base.examples import ExampleTask
from longspan.tasks.base.task import Baseline, Fitted, Recipe, S, check_validation

#: Words, and each punctuation mark by itself: "not good!" has three.
WORDS = r"\w+|[^\w\s]"
#: Characters of training text from which n-grams of characters, several times as many as words, are not tried.
MOST_CHARACTERS = 10_000_000
#: Values of scikit-learn's C that validation chooses from, for TF-IDF with logistic regression.
STRENGTHS = (1.0, 4.0, 16.0, 64.0)

Matrices = Mapping[str, Any]
"""By split, a matrix with a row for each document: sparse for n-grams."""


@dataclass(frozen=True)
class Documents:
    """A recipe's documents, split as for its runs, but whole: nothing is cut to `data.max_length`.

    Attributes:
        columns: The documents by column, then by split: one column, or one for each document of a pair.
        targets: By split, what a model of the task learns from, `(n, ...)`.
        config: The configuration of such a model, for labels and scores.
    """

    columns: Mapping[str, dict[str, list[str]]]
    targets: dict[str, Tensor]
    config: LongspanConfig

    @property
    def texts(self) -> dict[str, list[str]]:
        """By split, the documents of the first column."""
        return next(iter(self.columns.values()))


@dataclass(frozen=True)
class Candidate:
    """A fitted model that validation may choose.

    Attributes:
        chosen: Its settings, as JSON.
        outputs: By split, what a model of the task would give as logits, `(n, num_labels)`.
        parameters: Number of learned parameters.
    """

    chosen: dict[str, Any]
    outputs: Mapping[str, Tensor]
    parameters: int


class ChosenBaseline(Baseline[S]):
    """A model with settings chosen by the validation split."""

    @abc.abstractmethod
    def read(self, recipe: Recipe) -> Any:
        """Return examples by split: they have `targets` and `config` as `Documents` do."""

    @abc.abstractmethod
    def candidates(self, examples: Any, seed: int) -> Iterator[Candidate]:
        """Yield models that were fitted on the training examples, the plainest first."""

    def decided(self, config: LongspanConfig, outputs: Tensor, targets: Tensor) -> LongspanConfig:
        """Return the configuration with what a model of the task learns from the validation split; by default none."""
        return config

    def fit(self, recipe: Recipe) -> Fitted[S]:
        task, examples = recipe.task, self.read(recipe)
        assert isinstance(task, ExampleTask)
        best: tuple[tuple[float, float], Candidate, LongspanConfig] | None = None
        for candidate in self.candidates(examples, recipe.training["seed"]):
            outputs, targets = candidate.outputs["validation"], examples.targets["validation"]
            config = self.decided(examples.config, outputs, targets)
            scores = task.score(outputs, targets, config)
            found, loss = scores.numbers()[scores.headline()], scores.numbers().get("loss", 0.0)
            # Few examples cannot tell the settings apart by a share of them; the loss can.
            rank = (found if scores.higher_is_better() else -found, -loss)
            if best is None or rank > best[0]:
                best = rank, candidate, config
        assert best is not None
        _, candidate, config = best
        scored = {
            split: task.score(outputs, examples.targets[split], config) for split, outputs in candidate.outputs.items()
        }
        return Fitted(scored, candidate.chosen, candidate.parameters)


class BagBaseline(ChosenBaseline[S]):
    """A linear model over features of documents, such as n-grams, with settings chosen by the validation split."""

    packages: ClassVar[tuple[str, ...]] = ("sklearn",)

    def read(self, recipe: Recipe) -> Documents:
        task = recipe.task
        assert isinstance(task, ExampleTask)
        splits = task.load(recipe.data).splits
        check_validation(splits)
        config = task.configure({}, task.head(splits["train"], recipe.data))
        columns = {
            column.name: {name: list(map(composed, split[column.name][:])) for name, split in splits.items()}
            for column in task.inputs(recipe.data)
            if isinstance(column, Text)
        }
        return Documents(columns, targets_of(task, splits, config), config)


def targets_of(task: ExampleTask, splits: Mapping[str, Dataset], config: LongspanConfig) -> dict[str, Tensor]:
    """By split, what a model of a task learns from, `(n, ...)`."""
    target = task.target(config)
    convert = target.convert or (lambda value, where: value)
    return {
        name: torch.tensor(
            np.asarray([convert(*row) for row in zip(split[target.column][:], split["where"][:], strict=True)])
        )
        for name, split in splits.items()
    }


# Features


def tfidf(texts: Mapping[str, Sequence[str]]) -> Iterator[tuple[str, Matrices]]:
    """Yield TF-IDF of words and pairs of words, then also of characters within words if the texts are few."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    settings = {"sublinear_tf": True, "dtype": np.float32}
    words = _features(TfidfVectorizer(ngram_range=(1, 2), token_pattern=WORDS, **settings), texts)
    yield "words, pairs", words
    if sum(map(len, texts["train"])) > MOST_CHARACTERS:
        return
    from scipy.sparse import hstack

    characters = _features(TfidfVectorizer(ngram_range=(2, 5), analyzer="char_wb", **settings), texts)
    both = {name: hstack([words[name], characters[name]], format="csr") for name in words}
    yield "words, pairs, 2 to 5 characters", both


def presence(texts: Mapping[str, Sequence[str]], longest: int) -> tuple[Matrices, np.ndarray]:
    """N-grams of up to `longest` words that each document has, as 0 or 1, and the words of each column."""
    from sklearn.feature_extraction.text import CountVectorizer

    vectorizer = CountVectorizer(ngram_range=(1, longest), token_pattern=WORDS, binary=True, dtype=np.float32)
    found = _features(vectorizer, texts)
    sizes = np.empty(len(vectorizer.vocabulary_), np.int8)
    for gram, column in vectorizer.vocabulary_.items():
        sizes[column] = 1 + gram.count(" ")
    return found, sizes


def _features(vectorizer: Any, texts: Mapping[str, Sequence[str]]) -> Matrices:
    """Return the features of each split, which are learned from the training split."""
    learned = vectorizer.fit_transform(texts["train"])
    return {name: learned if name == "train" else vectorizer.transform(split) for name, split in texts.items()}


# Linear models


def log_odds(
    features: Matrices, truth: np.ndarray, strength: float, seed: int, *, dense: bool = False
) -> dict[str, np.ndarray]:
    """Fit a logistic regression, and return its log-odds on the splits that are held out.

    Args:
        features: Those of each split.
        truth: `(n,)` bool, for the training documents.
        strength: The inverse of the weight of the squared norm, scikit-learn's C.
        seed: For the solver's order of documents.
        dense: Whether the features are few and not sparse, for which another solver is faster.

    Returns:
        By split, `(n,)` float64.
    """
    from sklearn.linear_model import LogisticRegression

    if truth.all() or not truth.any():
        # Nothing to tell apart: the share that is certain, but for half a document.
        odds = math.log((truth.sum() + 0.5) / ((~truth).sum() + 0.5))
        return {name: np.full(matrix.shape[0], odds) for name, matrix in features.items() if name != "train"}
    solver = {} if dense else {"solver": "liblinear", "dual": True}
    return decisions(LogisticRegression(C=strength, max_iter=1000, random_state=seed, **solver), features, truth)


def decisions(model: Any, features: Matrices, truth: np.ndarray) -> dict[str, np.ndarray]:
    """Fit a classifier of scikit-learn, and return its decision function on the splits that are held out."""
    from sklearn.exceptions import ConvergenceWarning

    with warnings.catch_warnings():
        # Almost solved is good enough: validation chooses among what there is.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.fit(features["train"], truth)
    return {name: model.decision_function(matrix) for name, matrix in features.items() if name != "train"}


def classes_against_the_rest(labels: Tensor, classes: int) -> list[np.ndarray]:
    """Documents, `(n,)` bool, that have each class; with two classes, one model tells both, of the second."""
    numbers = labels.numpy()
    return [numbers == 1] if classes == 2 else [numbers == number for number in range(classes)]


def candidates(
    name: str, features: Matrices, documents: Documents, strengths: Sequence[float], seed: int, *, dense: bool = False
) -> Iterator[Candidate]:
    """Yield a logistic regression over features for each of several strengths.

    Args:
        name: Name of the features.
        features: By split.
        documents: Documents that have them, and their classes.
        strengths: Values of scikit-learn's C to try.
        seed: See `longspan.tasks.base.baselines.bags.log_odds`, as for `dense`.
        dense: Likewise.
    """
    wanted = classes_against_the_rest(documents.targets["train"], documents.config.num_labels)
    parameters = (features["train"].shape[1] + 1) * len(wanted)
    for strength in strengths:
        odds = [log_odds(features, truth, strength, seed, dense=dense) for truth in wanted]
        yield Candidate({"features": name, "C": strength}, class_logits(odds), parameters)


def class_logits(all_odds: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Tensor]:
    """Return the logits of all classes, by split, from the log-odds of each of `classes_against_the_rest`.

    They are the log probabilities of each class against the rest, `(n, classes)` float32, so that their softmax is
    these probabilities divided by their sum.
    """
    found = {}
    for split in all_odds[0]:
        columns = [odds[split] for odds in all_odds]
        columns = [-columns[0], columns[0]] if len(columns) == 1 else columns
        found[split] = logsigmoid(torch.from_numpy(np.stack(columns, -1))).float()
    return found
