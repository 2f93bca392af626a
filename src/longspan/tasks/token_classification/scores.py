"""Scores of labels: of spans and of words."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from longspan.errors import UserError
from longspan.results.scores import Scores, score
from longspan.tasks.token_classification.labels import spans

#: The confusions that are listed.
_LISTED = 20


@dataclass(frozen=True)
class TokenScores(Scores):
    """Scores of labelled words.

    With labels of spans, a span is right if its type, its first and its last word are. Precision, recall and F1 are
    those of seqeval (https://github.com/chakki-works/seqeval) in its strict mode, over all types together. With plain
    labels each word is a span of its own.

    Attributes:
        per_type: For each type, or plain label, its `precision`, `recall`, `f1` and `support`, 0 where undefined.
        labels: The labels of the rows and columns of `confusion`.
        confusion: Number of words by label, rows true and columns predicted.
        confused: The most frequent confusions: label, predicted label, and how often.
    """

    per_type: dict[str, dict[str, float]]
    labels: list[str]
    confusion: list[list[int]]
    confused: list[list[str | int]]
    f1: float = score("span F1", higher_is_better=True, share=True)
    precision: float = score("precision", higher_is_better=True, share=True)
    recall: float = score("recall", higher_is_better=True, share=True)
    accuracy: float = score("accuracy", higher_is_better=True, share=True)


def token_scores(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]], names: Sequence[str], *, plain: bool
) -> TokenScores:
    """Score the labels of sentences.

    Args:
        gold: The right labels of each sentence, in IOB2 unless plain.
        predicted: As many labels.
        names: The labels that a model may give; `gold` may have others, which it then gets wrong.
        plain: Whether each word has a label for itself.

    Raises:
        UserError: There are no words.
    """
    both = zip(gold, predicted, strict=True)
    pairs = Counter(pair for right, found in both for pair in zip(right, found, strict=True))
    words = sum(pairs.values())
    if not words:
        raise UserError("expected at least one word with a label to score, got none; choose other data.")
    known = [*names, *sorted({right for right, _ in pairs} - {*names})]
    right = sum(count for (label, found), count in pairs.items() if label == found)
    wrong = [pair for pair in pairs.most_common() if pair[0][0] != pair[0][1]]
    per_type, overall = _of_words(pairs, known) if plain else _of_spans(gold, predicted)
    return TokenScores(
        per_type=per_type,
        labels=known,
        confusion=[[pairs[label, found] for found in known] for label in known],
        confused=[[label, found, count] for (label, found), count in wrong[:_LISTED]],
        accuracy=right / words,
        **overall,
    )


def _of_spans(
    gold: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    right, found, there = Counter[str](), Counter[str](), Counter[str]()
    for labels, predictions in zip(gold, predicted, strict=True):
        true, guessed = spans(labels), spans(predictions)
        there.update(kind for kind, _, _ in true)
        found.update(kind for kind, _, _ in guessed)
        right.update(kind for kind, _, _ in {*true} & {*guessed})
    rows = {kind: _of_counts(right[kind], found[kind], there[kind]) for kind in sorted({*there, *found})}
    overall = _of_counts(right.total(), found.total(), there.total())
    return rows, {name: overall[name] for name in ("precision", "recall", "f1")}


def _of_counts(right: int, found: int, there: int) -> dict[str, float]:
    """Scores of spans, rounded as seqeval does."""
    row = _shares(right, found, there)
    total = row["precision"] + row["recall"]
    f1 = 2 * row["precision"] * row["recall"] / total if total else 0.0
    return {**row, "f1": f1, "support": float(there)}


def _of_words(
    pairs: Counter[tuple[str, str]], known: Sequence[str]
) -> tuple[dict[str, dict[str, float]], dict[str, float]]:
    given, there = Counter[str](), Counter[str]()
    for (label, found), count in pairs.items():
        there[label] += count
        given[found] += count
    rows = {label: _shares(pairs[label, label], given[label], there[label]) for label in known}
    right = sum(pairs[label, label] for label in known)
    total = _shares(right, sum(given.values()), sum(there.values()))
    return rows, {name: total[name] for name in ("precision", "recall", "f1")}


def _shares(right: int, given: int, there: int) -> dict[str, float]:
    return {
        "precision": right / given if given else 0.0,
        "recall": right / there if there else 0.0,
        "f1": 2 * right / (given + there) if given + there else 0.0,
        "support": there,
    }
