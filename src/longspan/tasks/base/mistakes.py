"""Mistakes and likely wrong labels from a model's outputs, for the tasks that share them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset
from torch import Tensor

from longspan.results.mistakes import Mistakes


@dataclass(frozen=True)
class Errors:
    """Errors among n answers, with scores.

    Attributes:
        measure: Meaning of the scores.
        scores: `(n,)`; NaN where the answer is right.
        expected: Returns the right answer of a number.
        said: Returns the model's answer.
        lowest: Whether the lowest scores are the worst.
        reason: Why nothing can be said about any of them; "" if there is something to say.
    """

    measure: str
    scores: np.ndarray
    expected: Callable[[int], str]
    said: Callable[[int], str]
    lowest: bool = False
    reason: str = ""

    def among(self, examples: Dataset, texts: Sequence[str] = ()) -> Mistakes:
        """Return the worst of examples, which have `where`, and text in the columns `texts`, if any."""
        if self.reason:
            return Mistakes(self.measure, reason=self.reason)
        rows = examples.select_columns(["where", *texts])

        def tell(number: int) -> dict[str, str]:
            row = rows[number]
            text = " / ".join(row[name] for name in texts if isinstance(row[name], str))
            where = row["where"]
            return {"where": where, "expected": self.expected(number), "said": self.said(number), "text": text}

        return Mistakes.ranked(self.measure, self.scores, tell, lowest=self.lowest)


def class_errors(logits: Tensor, gold: Tensor, names: Sequence[str]) -> Errors:
    """Return the examples of another class than the likeliest, the most confident first.

    Args:
        logits: `(n, c)`.
        gold: `(n,)` numbers of classes.
        names: The classes.
    """
    top = logits.double().softmax(-1).max(-1)
    scores = top.values.masked_fill(top.indices == gold, np.nan).numpy()
    return Errors("probability of the answer", scores, _named(gold, names), _named(top.indices, names))


def label_issues(logits: Tensor, gold: Tensor, names: Sequence[str]) -> Errors:
    """Return the examples whose given label is likely wrong, the least likely label first.

    This is confident learning (Northcutt et al. 2021, https://arxiv.org/abs/1911.00068). The threshold of a class is
    the mean probability of that class among the examples labelled so. Of the classes whose threshold an example
    reaches, the likeliest is its confident class. An example with another one than its label is an issue, ranked by the
    probability of its label (self-confidence).

    Args:
        logits: `(n, c)`, of examples that the model was not trained on.
        gold: `(n,)` numbers of the given labels.
        names: The classes.
    """
    shares, given = logits.double().softmax(-1).numpy(), gold.numpy()
    own = shares[np.arange(len(given)), given]
    counts = np.bincount(given, minlength=len(names))
    # A class without examples has no threshold that others could reach.
    thresholds = np.where(counts > 0, np.bincount(given, own, len(names)) / np.maximum(counts, 1), np.inf)
    confident = np.where(shares >= thresholds, shares, -1.0)
    best = confident.argmax(1)
    issue = (confident.max(1) >= 0) & (best != given)
    scores = np.where(issue, own, np.nan)
    measure, weak = "probability of the given label", agreement(shares.argmax(1), given, len(names)) < WEAK
    reason = "The model is too weak to tell: its answers hardly agree with the labels." if weak else ""
    return Errors(measure, scores, _named(gold, names), _named(best, names), lowest=True, reason=reason)


#: Agreement below which a model says nothing about labels.
WEAK = 0.2


def agreement(answers: np.ndarray, gold: np.ndarray, classes: int) -> float:
    """Cohen's kappa of answers and labels, (n,) numbers of classes each: 0 for chance, 1 for equal ones."""
    if not len(gold):
        return 0.0
    chance = float(np.bincount(answers, minlength=classes) @ np.bincount(gold, minlength=classes)) / len(gold) ** 2
    equal = float((answers == gold).mean())
    return (equal - chance) / (1 - chance) if chance < 1 else 0.0


def flag_errors(shares: Tensor, gold: Tensor, thresholds: Sequence[float], names: Sequence[str]) -> Errors:
    """Return the examples with a label too many or too few, ranked by the most confident of these decisions.

    Args:
        shares: `(n, c)` probabilities.
        gold: `(n, c)` true for labels that apply.
        thresholds: The probability from which each label is given.
        names: The labels.
    """
    found, right = shares.double().numpy(), gold.numpy() > 0.5
    given = found >= np.asarray(thresholds)
    sure = np.where(given, found, 1 - found)
    scores = np.where(given != right, sure, -1.0).max(1, initial=-1.0)

    def names_of(flags: np.ndarray) -> Callable[[int], str]:
        return lambda number: ", ".join(names[place] for place in np.flatnonzero(flags[number]).tolist()) or "(none)"

    scores = np.where(scores < 0, np.nan, scores)
    return Errors("probability of the wrong decision", scores, names_of(right), names_of(given))


def number_errors(given: Any, right: Any) -> Errors:
    """Return the examples with the largest absolute errors of numbers, `(n,)` each."""
    errors = np.abs(np.asarray(given, np.float64) - np.asarray(right, np.float64))
    scores = np.where(errors > 0, errors, np.nan)
    return Errors(
        "absolute error", scores, lambda number: f"{float(right[number]):g}", lambda number: f"{float(given[number]):g}"
    )


def _named(numbers: Any, names: Sequence[str]) -> Callable[[int], str]:
    return lambda number: names[int(numbers[number])]
