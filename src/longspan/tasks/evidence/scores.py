"""Scores of found evidence: how much of it comes first, and which parts are marked."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from longspan.errors import UserError
from longspan.results.scores import Scores, score

#: The share of a document that is read when its best parts are taken, for the headline.
SHARE = 1 / 6
#: The shares at which recall is drawn.
SHARES = (0.01, 0.02, 0.05, 0.1, SHARE, 0.2, 0.25, 0.3, 0.4, 0.5, 0.75, 1.0)


@dataclass(frozen=True)
class EvidenceScores(Scores):
    """Scores of parts of documents that answer questions.

    All but the last are means over questions, of those that some part answers, so that long answers count no more than
    short ones. Recall and average precision are of the ranking alone. Parts are marked where their probability reaches
    the threshold, which is the one with the highest part F1 on the validation split.

    Attributes:
        recall_by_share: Recall if that share of the parts of each document is read, those with the highest scores
            first; by shares as text.
        questions: Number of questions that were scored.
        unanswered: Number of others that no part answers.
        threshold: The probability from which a part is marked.
        recall_at_sixth: Share of the parts that answer a question among the first sixth of the document's parts
            (rounded up), ranked by score.
        average_precision: Mean, over the parts that answer a question, of the share of such parts among those ranked as
            high or higher.
        part_f1: F1 of marked parts.
        span_f1: F1 of spans, runs of marked parts against runs of parts that answer, of all questions together. Two
            agree if they share more than half of the parts in either (DeYoung et al. 2020, "ERASER", section 5, with
            spans of parts in place of tokens).
        exact_span_f1: The same, if only spans with the same ends agree.
    """

    recall_by_share: dict[str, float]
    questions: int
    unanswered: int
    threshold: float
    recall_at_sixth: float = score("recall at a sixth", higher_is_better=True, share=True)
    average_precision: float = score("average precision", higher_is_better=True, share=True)
    part_f1: float = score("part F1", higher_is_better=True, share=True)
    span_f1: float = score("span F1", higher_is_better=True, share=True)
    exact_span_f1: float = score("exact span F1", higher_is_better=True, share=True)


def evidence_scores(
    logits: Sequence[np.ndarray], truth: Sequence[np.ndarray], threshold: float | None = None
) -> EvidenceScores:
    """Score logits, `(p,)` for each question, against which of its parts answer it, `(p,)` bool.

    Args:
        logits: Higher where a part is likelier to answer; of equal ones, those of earlier parts come first.
        truth: The right answers.
        threshold: The probability from which a part is marked; None chooses the one with the highest part F1.

    Raises:
        UserError: No part answers any question, or logits are not finite.
    """
    if not all(np.isfinite(row).all() for row in logits):
        raise UserError(
            "the model's outputs for some questions are not finite; train it with a lower learning rate, or in float32."
        )
    pairs = [(row, gold) for row, gold in zip(logits, truth, strict=True) if gold.any()]
    if not pairs:
        raise UserError("expected at least one question that some part answers to score, got none.")
    found = [gold[np.argsort(-row, kind="stable")] for row, gold in pairs]
    recalls = {share: float(np.mean([_recall(hits, share) for hits in found])) for share in SHARES}
    threshold = best_threshold(pairs) if threshold is None else threshold
    marked = [(probabilities(row) >= threshold, gold) for row, gold in pairs]
    spans = [(runs(guess), runs(gold)) for guess, gold in marked]
    guessed, real = (sum(len(pair[side]) for pair in spans) for side in (0, 1))
    agreeing = sum(any(_agree(span, other) for other in gold) for guess, gold in spans for span in guess)
    return EvidenceScores(
        recall_by_share={f"{share:.4g}": recall for share, recall in recalls.items()},
        questions=len(pairs),
        unanswered=len(truth) - len(pairs),
        threshold=threshold,
        recall_at_sixth=recalls[SHARE],
        average_precision=float(np.mean([_average_precision(hits) for hits in found])),
        part_f1=float(np.mean([_f1((guess & gold).sum(), guess.sum(), gold.sum()) for guess, gold in marked])),
        span_f1=_f1(agreeing, guessed, real),
        exact_span_f1=_f1(sum(len(guess & gold) for guess, gold in spans), guessed, real),
    )


def probabilities(logits: np.ndarray) -> np.ndarray:
    """Return probabilities in float64, in which a high one is not rounded to 1."""
    found: np.ndarray = np.exp(-np.logaddexp(0, -logits.astype(np.float64)))
    return found


def best_threshold(pairs: Sequence[tuple[np.ndarray, np.ndarray]]) -> float:
    """Return, of a hundred quantiles of all probabilities, that from which marking parts has the highest part F1."""
    candidates = np.unique(
        np.quantile(np.concatenate([probabilities(row) for row, _ in pairs]), np.arange(0.5, 1, 0.005))
    )
    total = np.zeros(len(candidates))
    for row, gold in pairs:
        order = np.sort(probabilities(row))
        hits = np.sort(probabilities(row[gold]))
        guessed = len(order) - np.searchsorted(order, candidates)
        right = len(hits) - np.searchsorted(hits, candidates)
        total += 2 * right / (guessed + gold.sum())
    return float(candidates[total.argmax()])


def runs(marked: np.ndarray) -> set[tuple[int, int]]:
    """Return the first and the last part of each run of marked parts."""
    edges = np.flatnonzero(np.diff(np.concatenate([[0], marked.astype(np.int8), [0]])))
    return {(int(first), int(end) - 1) for first, end in zip(edges[::2], edges[1::2], strict=True)}


def _agree(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Return whether two runs share more than half of what is in either, which no two of one side do with the same."""
    shared = min(one[1], other[1]) - max(one[0], other[0]) + 1
    either = max(one[1], other[1]) - min(one[0], other[0]) + 1
    return 2 * shared > either


def first_parts(parts: int, share: float) -> int:
    """Number of a document's parts that are read for this share, at least one."""
    # Rounding errors must not add one: 0.3 * 10 is above 3.
    return max(1, math.ceil(round(share * parts, 9)))


def _recall(hits: np.ndarray, share: float) -> float:
    return float(hits[: first_parts(len(hits), share)].sum() / hits.sum())


def _average_precision(hits: np.ndarray) -> float:
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float(precision[hits].mean())


def _f1(right: int, guessed: int, real: int) -> float:
    return float(2 * right / (guessed + real)) if guessed + real else 0.0
