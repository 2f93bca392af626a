"""Scores of classifiers, through torchmetrics, and of language models, from the losses of their tokens."""

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchmetrics.functional import classification as scores

from longspan.errors import UserError

#: Bins of equal width in which confidence is compared with accuracy.
CALIBRATION_BINS = 15


def metrics(logits: Tensor | np.ndarray, labels: Tensor | np.ndarray, names: Sequence[str]) -> dict[str, Any]:
    """Score logits against labels.

    Args:
        logits: `(n, c)`, any float type.
        labels: `(n,)`, class numbers below `c`.
        names: The `c` class names, in the order of the columns; at least two.

    Returns:
        `accuracy`; `macro_f1`, the mean of F1 over the classes that occur in the labels or the predictions;
        `per_class`, for each name its `precision`, `recall`, `f1` and `support` (number of labels), 0 where undefined;
        `calibration_error`, the expected calibration error of the top class over `CALIBRATION_BINS` bins (Guo et al.
        2017); `reliability`, for each bin that holds anything its `from`, `to`, `count`, `confidence` and `accuracy`;
        `confusion`, rows true and columns predicted, counts. All of it goes into JSON as it is.

    Raises:
        UserError: There is nothing to score, or the logits are not finite, as after a training that diverged.
    """
    logits, labels = torch.as_tensor(logits).float().cpu(), torch.as_tensor(labels).long().cpu()
    if logits.ndim != 2 or logits.shape != (len(labels), len(names)):
        raise ValueError(
            f"expected logits of shape ({len(labels)}, {len(names)}) for {len(labels)} labels and {len(names)} names, "
            f"but got {tuple(logits.shape)}."
        )
    if not len(labels):
        raise UserError("expected at least one labelled document to score, but got none.")
    broken = int((~logits.isfinite().all(-1)).sum())
    if broken:
        raise UserError(
            f"the model's outputs are not finite for {broken} of {len(labels)} documents, as after a training that "
            "diverged: lower training.learning_rate."
        )
    classes = len(names)
    probabilities = logits.softmax(-1)
    predicted = probabilities.argmax(-1)
    counts = scores.multiclass_stat_scores(predicted, labels, classes, average="none")
    precision, recall, f1 = (
        score(predicted, labels, classes, average="none").tolist()
        for score in (scores.multiclass_precision, scores.multiclass_recall, scores.multiclass_f1_score)
    )
    # torchmetrics gives a confidence of exactly 1 a bin of its own, and takes softmax again of anything above 1.
    inside = probabilities.clamp(max=1 - torch.finfo(torch.float32).eps)
    return {
        "accuracy": float(scores.multiclass_accuracy(predicted, labels, classes, average="micro")),
        "macro_f1": float(scores.multiclass_f1_score(predicted, labels, classes, average="macro")),
        "per_class": {
            name: {"precision": precision[i], "recall": recall[i], "f1": f1[i], "support": int(counts[i, 4])}
            for i, name in enumerate(names)
        },
        "calibration_error": float(scores.multiclass_calibration_error(inside, labels, classes, CALIBRATION_BINS)),
        "reliability": _reliability(inside, labels),
        "confusion": scores.multiclass_confusion_matrix(predicted, labels, classes).tolist(),
    }


def _reliability(probabilities: Tensor, labels: Tensor) -> list[dict[str, float]]:
    """The bins behind the calibration error; empty ones are left out."""
    confidence, predicted = probabilities.max(-1)
    edges = torch.linspace(0, 1, CALIBRATION_BINS + 1)
    bins = torch.bucketize(confidence, edges, right=True) - 1
    right = predicted.eq(labels).float()
    return [
        {
            "from": float(edges[i]),
            "to": float(edges[i + 1]),
            "count": int(inside.sum()),
            "confidence": float(confidence[inside].mean()),
            "accuracy": float(right[inside].mean()),
        }
        for i in range(CALIBRATION_BINS)
        if (inside := bins == i).any()
    ]


def language_scores(losses: Sequence[np.ndarray], characters: int, size: int) -> dict[str, float]:
    """Score a language model by its losses.

    Args:
        losses: Nats of each target of each document, its end among them, as `longspan.likelihood.token_losses` returns.
        characters: Characters of the documents.
        size: Their size in UTF-8 in bytes.

    Returns:
        `loss`, nats per target; `perplexity`, e to that power; `bits_per_byte` and `bits_per_character`, all losses
        over the bytes and characters of the documents alone: ends cost, but have no bytes.

    Raises:
        UserError: There is nothing to score, or losses are not finite, as after a training that diverged.
    """
    targets = sum(map(len, losses))
    if not targets or not characters or not size:
        raise UserError("expected at least one document with text to score, but got none.")
    broken = sum(int((~np.isfinite(row)).sum()) for row in losses)
    if broken:
        raise UserError(
            f"the model's losses are not finite for {broken:,} of {targets:,} tokens, as after a training that "
            "diverged: lower training.learning_rate."
        )
    nats = sum(float(row.sum(dtype=np.float64)) for row in losses)
    loss, bits = nats / targets, nats / math.log(2)
    return {
        "loss": loss,
        "perplexity": math.exp(loss) if loss < 700 else math.inf,
        "bits_per_byte": bits / size,
        "bits_per_character": bits / characters,
    }


def loss_by_position(losses: Sequence[np.ndarray]) -> list[dict[str, float]]:
    """Return the mean loss at positions 1, 2 to 3, 4 to 7, ... of documents, as far as the longest one goes.

    Args:
        losses: Nats of each target of each document.

    Returns:
        Rows with `from` and `to`, both included, the number of `tokens` there, and their mean `loss`.
    """
    longest = max(map(len, losses), default=0)
    starts = 2 ** np.arange(longest.bit_length()) - 1
    counts, sums = np.zeros(len(starts), dtype=np.int64), np.zeros(len(starts))
    for row in losses:
        inside = starts[starts < len(row)]
        sums[: len(inside)] += np.add.reduceat(row, inside, dtype=np.float64)
        counts[: len(inside)] += np.diff(inside, append=len(row))
    return [
        {"from": start + 1, "to": min(2 * start + 1, longest), "tokens": count, "loss": total / count}
        for start, count, total in zip(starts.tolist(), counts.tolist(), sums.tolist(), strict=True)
    ]


@dataclass(frozen=True)
class ContextLength:
    """How far back a model of a group makes use of what it sees: see `relative_context_lengths`.

    Attributes:
        length: The relative effective context length in tokens.
        at_least: Whether it was still gaining at the largest length tried, which `length` then is.
        gains: For each context length but the largest, the relative gain of going on to the next one.
    """

    length: int
    at_least: bool
    gains: dict[int, float]


def relative_context_lengths(
    losses: Mapping[str, Mapping[int, np.ndarray]], *, share: float = 0.1, threshold: float = 0.01
) -> dict[str, ContextLength]:
    """Return the relative effective context length of each model of a group.

    With l_i(c, t) the loss of model i on token t from a context of c tokens, and c' the length tried after c:
        b(c, t) = min_i l_i(c, t);  T = the `share` of all tokens with the largest b(c, t)
        f_i(c, c') = mean over T of min(b(c, t), l_i(c', t));  g_i = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)
    and the result is the first c with g_i(c, c') < `threshold`. All models start from the best short-context loss of
    the group, on the tokens hardest to predict from there, so that a model that uses little context badly does not
    seem to gain more from a longer one.

    Source: Dai et al. 2019, section 4.3 and appendix C, https://arxiv.org/abs/1901.02860

    Args:
        losses: For each model and each context length the losses of the same tokens in nats, (t,).
        share: Share of the tokens compared, above 0 and at most 1.
        threshold: Least relative gain in perplexity that counts.

    Raises:
        UserError: Fewer than two lengths, models whose lengths or tokens differ, or a share that is none.
    """
    if not 0 < share <= 1:
        raise UserError(f"expected a share of the tokens above 0 and at most 1, but got {share}; 0.1 is a tenth.")
    lengths = sorted(next(iter(losses.values()), {}))
    sizes = {len(row) for by_length in losses.values() for row in by_length.values()}
    if len(lengths) < 2 or len(sizes) != 1 or any(sorted(by_length) != lengths for by_length in losses.values()):
        raise UserError(
            f"expected losses of the same tokens at the same two or more context lengths from each model, but got "
            f"lengths {', '.join(str(sorted(by_length)) for by_length in losses.values())} and {sorted(sizes)} tokens."
        )
    hardest = math.ceil(share * sizes.pop())
    gains: dict[str, dict[int, float]] = {name: {} for name in losses}
    for short, long in itertools.pairwise(lengths):
        best = np.min([by_length[short] for by_length in losses.values()], axis=0).astype(np.float64)
        tokens = np.argsort(-best, kind="stable")[:hardest]
        for name, by_length in losses.items():
            better = np.minimum(best, by_length[long])[tokens]
            gains[name][short] = -math.expm1(better.mean() - best[tokens].mean())
    found = {}
    for name, gain in gains.items():
        first = next((length for length in gain if gain[length] < threshold), None)
        found[name] = ContextLength(lengths[-1] if first is None else first, first is None, gain)
    return found
