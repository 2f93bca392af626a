"""Fitting the wide part of a classifier before its deep part is trained: `fit_wide`.

Its logits are a mean of two multinomial logistic regressions over the n-grams that documents have. One is weighted by
naive Bayes (Wang and Manning 2012, https://aclanthology.org/P12-2018): W_c = r_c ⊙ v_c with the log-count ratios
r_c = log((p_c / |p_c|) / (q_c / |q_c|)), where p_c and q_c count the training documents of class c, and of the others,
with each n-gram, and one more. The other has the TF-IDF vectors of single tokens, which is better where documents are
few. Both have the penalty λ/2 |v|² and are convex, so L-BFGS finds the same solution whatever the seed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from datasets import Dataset
from datasets.utils import tqdm
from torch import Tensor
from torch.nn.functional import cross_entropy

from longspan.environment import available_memory
from longspan.errors import UserError
from longspan.models.wide import FOLDS, LONGEST, Wide, fold_of, ngram_counts, ngram_hashes
from longspan.tasks.document_classification.bags import Bags, batches
from longspan.tasks.document_classification.regression import Linear, Regression
from longspan.training.lengths import targets

#: What λ is chosen from, as long as documents held out are predicted better.
PENALTIES = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
#: Folds are held out in turn to choose it until so many documents were.
ENOUGH = 1000
#: What the part of TF-IDF in the mean of both is chosen from.
SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
#: Places in the table, and places times classes, where recipes do not say how many: what is fitted within minutes.
MOST, MOST_WEIGHTS = 2**20, 2**22
#: Steps from one penalty to the next.
_STEPS = 20
#: L-BFGS remembers eight steps and their gradients, and the rest is in float64; of each fold's regression.
_COPIES = 48


@dataclass(frozen=True)
class Kind:
    """A regression over n-grams of up to `longest` tokens: of TF-IDF vectors, or weighted by naive Bayes."""

    longest: int
    tfidf: bool = False


BAYES, TFIDF = (Kind(2), Kind(3)), Kind(1, tfidf=True)


@dataclass(frozen=True)
class Chosen:
    """What predicts documents held out best: a kind of naive Bayes, both penalties, and the part of TF-IDF."""

    bayes: Kind
    penalties: tuple[float, float]
    share: float


@dataclass(frozen=True)
class Counted:
    """Training documents as bags, with their labels.

    Attributes:
        bags: How often each document has each n-gram.
        labels: `(n,)` class numbers.
        class_weights: `(c,)` what multiplies the loss of documents of each class.
        tokens: `(size,)` of how many tokens each n-gram is made.
    """

    bags: Bags
    labels: np.ndarray
    class_weights: np.ndarray
    tokens: np.ndarray

    def part(self, which: np.ndarray) -> "Counted":
        """Return those of the documents for which `which`, `(n,)`, is true."""
        return replace(self, bags=self.bags.part(which), labels=self.labels[which])

    def per_class(self) -> np.ndarray:
        """Return how many documents of each class have each n-gram, `(size, c)` float64."""
        return self.bags.presence().totals(np.eye(len(self.class_weights))[self.labels])


class Model:
    """A regression of one kind over training documents."""

    def __init__(self, kind: Kind, documents: Counted) -> None:
        self._kind, self._wanted = kind, documents.tokens <= kind.longest
        per_class = documents.per_class() * self._wanted[:, None]
        self.idf = inverse_frequency(per_class.sum(1), len(documents.labels))
        ratio = np.ones(per_class.shape, np.float32) if kind.tfidf else log_ratios(per_class)
        features = self._features(documents.bags)
        self._regression = Regression(features, documents.labels, documents.class_weights, ratio)

    def _features(self, bags: Bags) -> Bags:
        kept = bags.among(self._wanted)
        return kept.tfidf(self.idf) if self._kind.tfidf else kept.presence()

    def solve(self, penalty: float) -> Linear:
        """Return the solution for a penalty, on the way from the one before."""
        return self._regression.solve(penalty, _STEPS)

    def logits(self, penalty: float, held_out: Bags) -> Tensor:
        """Return what the solution for a penalty gives other documents, `(n, c)`."""
        return self.solve(penalty).logits(self._features(held_out))


def inverse_frequency(documents: np.ndarray, count: int) -> np.ndarray:
    """Return ln((1 + n) / (1 + n_g)) + 1 for n-grams that n_g of n documents have, and 0 where none has it."""
    return np.where(documents > 0, np.log((1 + count) / (1 + documents)) + 1, 0.0)


def log_ratios(per_class: np.ndarray) -> np.ndarray:
    """Return the log-count ratios `(size, c)` float32 of how many documents of each class have each n-gram."""
    # Nothing is known about what never occurs.
    occurs = per_class.any(1)
    inside = per_class[occurs] + 1
    outside = per_class[occurs].sum(1, keepdims=True) - per_class[occurs] + 1
    ratio = np.zeros(per_class.shape, np.float32)
    ratio[occurs] = np.log(inside / inside.sum(0)) - np.log(outside / outside.sum(0))
    return ratio


def table_size(documents: Dataset, classes: int) -> int:
    """Return how many places let most n-grams of documents have one of their own: a power of 2, within bounds.

    Args:
        documents: Tokenised documents with the column `length`.
        classes: How many weights each place has.
    """
    # Of the n-grams of a text, not many more than half are different.
    wanted = LONGEST * sum(documents["length"][:])
    most = min(MOST, MOST_WEIGHTS // classes)
    return 1 << max(4, min(wanted.bit_length(), most.bit_length() - 1))


def check_memory(places: int, classes: int) -> None:
    """Raise UserError if the weights of so many places and classes cannot be fitted in this machine's memory."""
    needed = _COPIES * places * classes * 4
    memory = available_memory()
    if memory is not None and needed > memory:
        raise UserError(
            f"expected weights of n-grams that can be fitted in {memory / 2**30:.0f} GiB of memory, got {places:,} "
            f"places for {classes:,} classes, which take {needed / 2**30:.0f} GiB; lower model.wide_buckets."
        )


def fit_wide(wide: Wide, documents: Dataset, class_weights: Sequence[float] | None) -> Chosen:
    """Fit the tables of a model's wide part to training documents, and return what was chosen for it.

    Args:
        wide: The part, changed in place.
        documents: Tokenised documents with the columns `input_ids`, `length` and `labels`.
        class_weights: `(c,)` what multiplies the loss of documents of each class; None is 1.
    """
    labels = targets(documents).numpy()
    weights = np.ones(len(wide.bias)) if class_weights is None else np.array(class_weights)
    _give_places(wide, Bags.of(documents, ngram_counts, 2**31))
    found = Bags.of(documents, wide.counts, wide.buckets)
    # Most places of the table may be empty, and every step goes through all weights.
    used, numbers = np.unique(found.grams, return_inverse=True)
    bags = replace(found, grams=numbers.astype(np.int32), size=len(used))
    tokens, folds = _tokens_and_folds(wide, documents)
    counted = Counted(bags, labels, weights, tokens[used])
    with tqdm(total=len(BAYES) + 3, desc="Fitting n-grams", leave=False) as bar:
        chosen = _choose(counted, bar)
        models = [Model(kind, counted) for kind in (chosen.bayes, TFIDF)]
        fitted = []
        for model, penalty in zip(models, chosen.penalties, strict=True):
            # On the way that was tried: solutions that are not exact are better or worse than exact ones.
            for each in PENALTIES[: PENALTIES.index(penalty) + 1]:
                solution = model.solve(each)
            fitted.append(solution)
            bar.update()
    parts = (1 - chosen.share, chosen.share)
    places = torch.from_numpy(used)
    with torch.no_grad():
        for table, part, solution in zip((wide.weight, wide.tfidf_weight), parts, fitted, strict=True):
            table[places] = torch.from_numpy(part * solution.weights)
        wide.idf[places] = torch.from_numpy(models[1].idf).float()
        wide.bias.copy_(torch.from_numpy(sum(part * each.bias for part, each in zip(parts, fitted, strict=True))))
    _fit_evidence(wide, counted, folds, places)
    return chosen


def _give_places(wide: Wide, bags: Bags) -> None:
    """Give each place in the table to the n-gram that most documents have of those hashed there."""
    hashes, counts = np.unique(bags.grams, return_counts=True)
    hashes = hashes[np.argsort(counts, kind="stable")]
    keys = np.full(wide.buckets, -1, np.int32)
    # Of equal places the last one stays.
    keys[hashes % wide.buckets] = hashes
    wide.keys.copy_(torch.from_numpy(keys))


def _tokens_and_folds(wide: Wide, documents: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Return of how many tokens the n-gram at each place is made, and the fold of each document."""
    tokens, folds = torch.zeros(wide.buckets, dtype=torch.int8), torch.zeros(len(documents), dtype=torch.long)
    for batch, ids, mask in batches(documents, "Measuring n-grams"):
        hashes = ngram_hashes(ids, mask)
        places = hashes % wide.buckets
        for number in range(LONGEST):
            tokens[places[..., number][wide.keys[places[..., number]] == hashes[..., number]]] = number + 1
        folds[torch.tensor(batch)] = fold_of(ids, mask)
    return tokens.numpy(), folds.numpy()


def _fit_evidence(wide: Wide, documents: Counted, folds: np.ndarray, places: Tensor) -> None:
    """Set the log-count ratios of all training documents, and those without each fold."""
    per_class = documents.per_class()
    wide.ratio[places] = torch.from_numpy(log_ratios(per_class))
    held_out = torch.zeros(FOLDS, *wide.ratio.shape, dtype=torch.float16)
    for fold in range(FOLDS):
        rest = per_class - documents.part(folds == fold).per_class()
        held_out[fold, places] = torch.from_numpy(log_ratios(rest)).half()
    wide.held_out = held_out


def _choose(documents: Counted, bar: tqdm) -> Chosen:
    """Return what predicts documents held out best."""
    labels = documents.labels
    # Documents come class by class, so that consecutive ones are spread over the folds; and the same ones each time.
    fold = np.empty(len(labels), np.int64)
    fold[np.lexsort((np.random.default_rng(0).random(len(labels)), labels))] = np.arange(len(labels)) % FOLDS
    tried = [number for number in range(FOLDS) if number * len(labels) / FOLDS < ENOUGH and (fold == number).any()]
    truth = torch.from_numpy(np.concatenate([labels[fold == number] for number in tried]))
    importance = torch.from_numpy(documents.class_weights)[truth]

    def loss(logits: Tensor) -> float:
        return float(cross_entropy(logits, truth, reduction="none") @ importance.float())

    def best(kind: Kind) -> tuple[float, float, Tensor]:
        """Return the lowest loss on the way, its penalty, and the logits there."""
        models = [Model(kind, documents.part(fold != number)) for number in tried]
        found: list[tuple[float, float, Tensor]] = []
        for penalty in PENALTIES:
            parts = [
                model.logits(penalty, documents.bags.part(fold == number))
                for model, number in zip(models, tried, strict=True)
            ]
            logits = torch.cat(parts)
            found.append((loss(logits), penalty, logits))
            if found[-1][0] > min(each[0] for each in found):
                break
        bar.update()
        return min(found, key=lambda each: each[0])

    (_, penalty, bayes), kind = min(((best(kind), kind) for kind in BAYES), key=lambda each: each[0][0])
    _, weaker, tfidf = best(TFIDF)
    share = min(SHARES, key=lambda share: loss((1 - share) * bayes + share * tfidf))
    return Chosen(kind, (penalty, weaker), share)
