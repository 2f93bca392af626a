"""Scores of a multi-label classifier, and the thresholds by which its probabilities become labels."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from longspan.errors import UserError
from longspan.results.scores import Scores, check_finite, score


@dataclass(frozen=True)
class MultiLabelScores(Scores):
    """Scores of a multi-label classifier.

    The mean average precision depends on no threshold, so it compares epochs, mixers and runs, and chooses the best
    epoch. The other scores are of the labels whose probability reaches their threshold.

    Attributes:
        per_label: For each name its `precision`, `recall`, `f1` and `average_precision` (0 where undefined), its
            `support` (number of documents with it) and `threshold`.
        mean_average_precision: Mean of the average precision over the labels that occur; 0 if none does.
        micro_f1: F1 over all decisions, so that frequent labels count more.
        macro_f1: Mean of F1 over the labels that occur or are predicted; 0 if none is.
        subset_accuracy: Share of documents with all of their labels right, and no others.
        loss: Mean binary cross-entropy over all labels.
    """

    per_label: dict[str, dict[str, float]]
    mean_average_precision: float = score("mean average precision", higher_is_better=True, share=True)
    micro_f1: float = score("micro-F1", higher_is_better=True, share=True)
    macro_f1: float = score("macro-F1", higher_is_better=True, share=True)
    subset_accuracy: float = score("subset accuracy", higher_is_better=True, share=True)
    loss: float = score("cross-entropy (nats)", higher_is_better=False)


class Curve(NamedTuple):
    """Precision and recall when the documents with the highest logits are taken, one more logit at a time.

    Attributes:
        logits: `(m,)` the different logits, highest first: documents from this one on are taken.
        precision: `(m,)` share of those taken that have the label.
        recall: `(m,)` share of those with the label that are taken.
    """

    logits: np.ndarray
    precision: np.ndarray
    recall: np.ndarray

    @property
    def average_precision(self) -> float:
        """Σ_i (recall_i - recall_{i-1}) precision_i: the area below, with no interpolation (Manning et al. 2008)."""
        return float((np.diff(self.recall, prepend=0) * self.precision).sum())


def precision_recall(logits: np.ndarray, truth: np.ndarray) -> Curve:
    """Return the curve of one label, or of several taken together.

    Args:
        logits: `(n,)` numbers that are higher where the label is likelier; equal ones are taken together.
        truth: `(n,)` bool; at least one is True.
    """
    order = np.argsort(-logits, kind="stable")
    ranked = logits[order]
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
    found = np.cumsum(truth[order], dtype=np.int64)[last]
    return Curve(ranked[last], found / (last + 1), found / found[-1])


#: Documents that the decisions about all labels count as, in the choice of a label's threshold.
_POOLED = 200


def best_thresholds(logits: Tensor, targets: Tensor) -> list[float]:
    """Return, for each label, the probability from which giving it has the highest F1.

    Few documents have a label by chance. F1 therefore is that of the label's decisions and of the decisions about all
    labels together, which count as `_POOLED` documents. A threshold lies between two logits, so that rounding decides
    nothing. Where several have that F1, it is the one nearest to 0.5, and 0.5 itself where all decisions are the same.

    Args:
        logits: `(n, k)` logits of the validation split.
        targets: `(n, k)` 0 or 1.
    """
    columns, truth = logits.double().numpy(), targets.numpy() > 0.5
    if truth.all() or not truth.any():
        return [0.5] * truth.shape[1]
    every, weight = (np.sort(columns, axis=None), np.sort(columns[truth])), _POOLED / truth.size
    cuts = _cuts(every[0])
    right, decided = _sums(*every, cuts)
    common = cuts[(right / decided).argmax()]
    found = []
    for column, has in zip(columns.T, truth.T, strict=True):
        cuts = np.append(_cuts(column), common)
        right, decided = _sums(np.sort(column), np.sort(column[has]), cuts) + weight * _sums(*every, cuts)
        best = cuts[right / decided >= (right / decided).max() - 1e-12]
        found.append(float(min(_sigmoid(best), key=lambda cut: abs(cut - 0.5))))
    return found


def _cuts(logits: np.ndarray) -> np.ndarray:
    """Numbers midway between logits and the next lower ones, and a half below the lowest."""
    distinct = np.unique(logits)
    return (distinct + np.append(distinct[:1] - 1, distinct[:-1])) / 2


def _sums(logits: np.ndarray, having: np.ndarray, cuts: np.ndarray) -> np.ndarray:
    """Numerator and denominator of F1 from each of `cuts` on, `(2, c)`, by logits of all and of those with the label.

    Logits are in increasing order.
    """
    given, right = (len(each) - np.searchsorted(each, cuts) for each in (logits, having))
    return np.stack([2.0 * right, given + len(having)])


def _sigmoid(logits: np.ndarray) -> np.ndarray:
    found: np.ndarray = torch.from_numpy(logits).sigmoid().numpy()
    return found


def probabilities(logits: Tensor) -> Tensor:
    """Return probabilities in float64, in which a high one is not rounded to 1."""
    return logits.double().sigmoid()


def multi_label_scores(
    logits: Tensor, targets: Tensor, names: Sequence[str], thresholds: Sequence[float]
) -> MultiLabelScores:
    """Score logits against labels.

    Args:
        logits: `(n, k)`, any float type.
        targets: `(n, k)`, 1 where a label applies and 0 where not.
        names: The `k` labels, in the order of the columns.
        thresholds: `(k,)` probabilities from which labels are given.

    Raises:
        UserError: There is nothing to score, or the logits are not finite.
    """
    if not len(targets):
        raise UserError("expected at least one labelled document to score, got none.")
    check_finite(logits, "documents")
    truth = targets > 0.5
    given = probabilities(logits) >= torch.tensor(thresholds, dtype=torch.float64)
    right, guessed, real = ((truth & given).sum(0), given.sum(0), truth.sum(0))
    f1 = _ratio(2 * right, guessed + real)
    precision, recall = _ratio(right, guessed), _ratio(right, real)
    columns = zip(logits.double().numpy().T, truth.numpy().T, strict=True)
    average = [precision_recall(column, has).average_precision if has.any() else 0.0 for column, has in columns]
    occurring = [value for value, count in zip(average, real.tolist(), strict=True) if count]
    seen = f1[(guessed + real) > 0]
    return MultiLabelScores(
        per_label={
            name: {
                "precision": float(precision[i]),
                "recall": float(recall[i]),
                "f1": float(f1[i]),
                "average_precision": average[i],
                "support": int(real[i]),
                "threshold": float(thresholds[i]),
            }
            for i, name in enumerate(names)
        },
        mean_average_precision=sum(occurring) / len(occurring) if occurring else 0.0,
        micro_f1=float(_ratio(2 * right.sum(), (guessed + real).sum())),
        macro_f1=float(seen.mean()) if len(seen) else 0.0,
        subset_accuracy=float((truth == given).all(-1).double().mean()),
        loss=float(torch.nn.functional.binary_cross_entropy_with_logits(logits.double(), truth.double())),
    )


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """Divide counts, 0 by 0 being 0."""
    return numerator.double() / denominator.clamp_min(1)
