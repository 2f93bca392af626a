"""Fitting the wide part of a classifier before its deep part is trained: `fit_wide`.

It is multinomial logistic regression over the n-grams that documents have, weighted by naive Bayes (Wang and Manning
2012, https://aclanthology.org/P12-2018): W_c = r_c ⊙ v_c with r_c = log((p_c / |p_c|) / (q_c / |q_c|)), where p_c and
q_c count the training documents of class c, and of the others, with each n-gram, and one more. The regression of v with
the penalty λ/2 |v|² is convex, so L-BFGS finds the same solution whatever the seed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.functional import cross_entropy, embedding_bag

from longspan.data.batches import pad
from longspan.environment import available_memory
from longspan.errors import UserError
from longspan.models.wide import LONGEST, Wide, ngram_hashes
from longspan.training.lengths import scoring_batches, targets

#: What λ is chosen from, as long as documents held out are predicted better.
PENALTIES = (30.0, 10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)
#: Documents are cut into so many parts to choose it, each of which is held out in turn until so many documents were.
FOLDS, ENOUGH = 5, 1000
#: Places in the table, where recipes do not say how many.
MOST = 2**20
#: Steps from one penalty to the next.
_STEPS = 20
#: L-BFGS remembers eight steps and their gradients, and the rest is in float64; of each fold's regression.
_COPIES = 40
_BATCH_TOKENS = 65_536


Places = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]


@dataclass(frozen=True)
class Bags:
    """The different n-grams that documents have.

    Attributes:
        grams: `(m,)` int32 numbers of n-grams, one document after the other.
        counts: `(n,)` how many each document has.
        size: The numbers are below this.
    """

    grams: np.ndarray
    counts: np.ndarray
    size: int

    @classmethod
    def of(cls, documents: Dataset, places: Places, size: int) -> Self:
        """Return those of documents with the columns `input_ids` and `length`.

        Args:
            documents: The documents.
            places: Maps token ids and mask, `(b, t)`, to places `(b, g)` below `size`, and which of them count.
            size: How many places there are.
        """
        rows = documents.with_format("numpy")["input_ids"][:]
        parts: list[np.ndarray] = [np.zeros(0, np.int32)] * len(rows)
        for batch in scoring_batches(documents["length"][:], len(rows), _BATCH_TOKENS):
            padded = pad([{"input_ids": rows[row]} for row in batch], 0)
            found, real = places(padded["input_ids"], padded["attention_mask"].bool())
            for row, of_row, counts in zip(batch, found.int().numpy(), real.numpy(), strict=True):
                parts[row] = of_row[counts]
        return cls(np.concatenate(parts), np.array(list(map(len, parts))), size)

    def part(self, which: np.ndarray) -> "Bags":
        """Return those of the documents for which `which`, `(n,)`, is true."""
        return Bags(self.grams[np.repeat(which, self.counts)], self.counts[which], self.size)

    def sums(self, weights: np.ndarray) -> np.ndarray:
        """Return for each document the sum of the weights `(size, c)` of its n-grams, `(n, c)` float32."""
        starts = torch.from_numpy(np.cumsum(self.counts) - self.counts).int()
        table = torch.from_numpy(weights.astype(np.float32))
        found: np.ndarray = embedding_bag(torch.from_numpy(self.grams), table, starts, mode="sum").numpy()
        return found

    def totals(self, values: np.ndarray) -> np.ndarray:
        """Return for each n-gram the sum of the values `(n, c)` of the documents with it, `(size, c)` float64."""
        columns = [np.bincount(self.grams, np.repeat(column, self.counts), self.size) for column in values.T]
        return np.stack(columns, -1)


@dataclass(frozen=True)
class Linear:
    """A linear model: weights `(size, c)` float32, and bias `(c,)`."""

    weights: np.ndarray
    bias: np.ndarray

    def logits(self, documents: Bags) -> Tensor:
        """Return the logits of documents, `(n, c)` float32."""
        return torch.from_numpy(documents.sums(self.weights) + self.bias.astype(np.float32))


class Regression:
    """The regression over the n-grams of training documents, from strong penalties to weak ones.

    Args:
        documents: The bags of training documents.
        labels: `(n,)` their class numbers.
        class_weights: `(c,)` what multiplies the loss of documents of each class.
    """

    def __init__(self, documents: Bags, labels: np.ndarray, class_weights: np.ndarray) -> None:
        self.documents, self.labels = documents, torch.from_numpy(labels)
        self.truth = np.eye(len(class_weights))[labels]
        self.importance = class_weights[labels]
        inside = documents.totals(self.truth)
        seen = inside.sum(1, keepdims=True)
        outside = seen - inside + 1
        inside = inside + 1
        ratio = np.log(inside / inside.sum(0)) - np.log(outside / outside.sum(0))
        # Nothing is known about what never occurs.
        self.ratio = np.where(seen > 0, ratio, 0.0).astype(np.float32)
        self._found = torch.zeros(self.ratio.size + len(class_weights))

    def solve(self, penalty: float, steps: int) -> Linear:
        """Return the solution for the penalty λ after so many steps at most, starting from the one before."""
        found = self._found.requires_grad_()
        optimizer = torch.optim.LBFGS(
            [found],
            max_iter=steps,
            history_size=8,
            line_search_fn="strong_wolfe",
            tolerance_grad=1e-3,
            tolerance_change=1e-6 * len(self.labels),
        )

        def loss() -> Tensor:
            model = self._linear()
            logits = model.logits(self.documents).double()
            losses = cross_entropy(logits, self.labels, reduction="none").numpy()
            weights = found.detach()[: self.ratio.size]
            slopes = (logits.softmax(-1).numpy() - self.truth) * self.importance[:, None]
            inner = (self.documents.totals(slopes) * self.ratio).ravel() + penalty * weights.numpy()
            found.grad = torch.from_numpy(np.concatenate([inner, slopes.sum(0)])).float()
            return torch.tensor(losses @ self.importance) + penalty / 2 * weights.double().square().sum()

        optimizer.step(loss)
        self._found = found.detach()
        return self._linear()

    def _linear(self) -> Linear:
        values, size = self._found.detach().numpy(), self.ratio.size
        return Linear(values[:size].reshape(self.ratio.shape) * self.ratio, values[size:])


def table_size(documents: Dataset) -> int:
    """Return how many places let most n-grams of documents have one of their own: a power of 2, `MOST` at most.

    Args:
        documents: Tokenised documents with the column `length`.
    """
    # Of the n-grams of a text, not many more than half are different.
    grams = LONGEST * sum(documents["length"][:])
    return min(MOST, 1 << max(4, grams.bit_length()))


def check_memory(places: int, classes: int) -> None:
    """Raise UserError if the weights of so many places and classes cannot be fitted in this machine's memory."""
    needed = _COPIES * places * classes * 4
    memory = available_memory()
    if memory is not None and needed > memory:
        raise UserError(
            f"expected weights of n-grams that can be fitted in {memory / 2**30:.0f} GiB of memory, got {places:,} "
            f"places for {classes:,} classes, which take {needed / 2**30:.0f} GiB; lower model.wide_buckets."
        )


def fit_wide(wide: Wide, documents: Dataset, class_weights: Sequence[float] | None) -> float:
    """Fit the table and the weights of a model's wide part to training documents, and return the penalty chosen.

    Args:
        wide: The part, changed in place.
        documents: Tokenised documents with the columns `input_ids`, `length` and `labels`.
        class_weights: `(c,)` what multiplies the loss of documents of each class; None is 1.
    """
    labels = targets(documents).numpy()
    weights = np.ones(wide.weight.shape[1]) if class_weights is None else np.array(class_weights)
    _give_places(wide, Bags.of(documents, ngram_hashes, 2**31))
    found = Bags.of(documents, wide.places, wide.buckets)
    # Most places of the table may be empty, and every step goes through all weights.
    used, numbers = np.unique(found.grams, return_inverse=True)
    bags = Bags(numbers.astype(np.int32), found.counts, len(used))
    penalty = _penalty(bags, labels, weights)
    regression = Regression(bags, labels, weights)
    # On the way that was tried: solutions that are not exact are better or worse than exact ones.
    for each in PENALTIES[: PENALTIES.index(penalty) + 1]:
        solution = regression.solve(each, _STEPS)
    with torch.no_grad():
        wide.weight.zero_()
        wide.weight[torch.from_numpy(used)] = torch.from_numpy(solution.weights)
        wide.bias.copy_(torch.from_numpy(solution.bias))
    return penalty


def _give_places(wide: Wide, bags: Bags) -> None:
    """Give each place in the table to the n-gram that most documents have of those hashed there."""
    hashes, counts = np.unique(bags.grams, return_counts=True)
    hashes = hashes[np.argsort(counts, kind="stable")]
    keys = np.full(wide.buckets, -1, np.int32)
    # Of equal places the last one stays.
    keys[hashes % wide.buckets] = hashes
    wide.keys.copy_(torch.from_numpy(keys))


def _penalty(bags: Bags, labels: np.ndarray, weights: np.ndarray) -> float:
    """Return the penalty with which documents held out are predicted best."""
    # Documents come class by class, so that consecutive ones are spread over the folds; and the same ones each time.
    fold = np.empty(len(labels), np.int64)
    fold[np.lexsort((np.random.default_rng(0).random(len(labels)), labels))] = np.arange(len(labels)) % FOLDS
    tried = [number for number in range(FOLDS) if number * len(labels) / FOLDS < ENOUGH and (fold == number).any()]
    regressions = [Regression(bags.part(fold != number), labels[fold != number], weights) for number in tried]
    losses: list[float] = []
    for penalty in PENALTIES:
        loss = 0.0
        for number, regression in zip(tried, regressions, strict=True):
            held_out = fold == number
            logits = regression.solve(penalty, _STEPS).logits(bags.part(held_out))
            found = cross_entropy(logits, torch.from_numpy(labels[held_out]), reduction="none").numpy()
            loss += float(found @ weights[labels[held_out]])
        losses.append(loss)
        if loss > min(losses):
            break
    return PENALTIES[int(np.argmin(losses))]
