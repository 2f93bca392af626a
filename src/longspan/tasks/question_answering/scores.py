"""Scores of answers, by SQuAD's official scripts."""

import re
import string
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longspan.errors import UserError
from longspan.results.scores import Scores, score

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class AnswerScores(Scores):
    """Agreement of answers with the expected ones, after `normalised`; of several, with the one that suits best.

    Attributes:
        kinds: Where the data have questions without an answer, for "answer" and "no answer" the number of `questions`
            and their `exact_match` and `f1`; otherwise empty.
        threshold: The log-odds from which an answer is given; None if one always is.
        loss: Training loss: the cross-entropy of an answer's first and last token, their mean, in nats; None
            for what has no probabilities.
        f1: Mean F1 of the words of answers (Rajpurkar et al. 2016, https://arxiv.org/abs/1606.05250).
        exact_match: Share of questions whose answer is an expected one.
    """

    kinds: dict[str, dict[str, float]]
    threshold: float | None
    loss: float | None
    f1: float = score("F1", higher_is_better=True, share=True)
    exact_match: float = score("exact match", higher_is_better=True, share=True)


def normalised(answer: str) -> str:
    """Return an answer in lower case, without punctuation and articles, with single spaces, as the official scripts."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_PUNCTUATION)).split())


def exact_match(given: str, expected: Sequence[str]) -> float:
    """Return whether an answer is one of the expected ones, as 0 or 1; "" is right where none is expected."""
    return float(any(normalised(given) == normalised(each) for each in _scorable(expected)))


def f1(given: str, expected: Sequence[str]) -> float:
    """Return the largest F1 of an answer's words with those of an expected one; "" is right where none is expected."""
    return max(_f1(normalised(given).split(), normalised(each).split()) for each in _scorable(expected))


def _scorable(expected: Sequence[str]) -> Sequence[str]:
    """Return the expected answers without those of articles and punctuation alone; "" for an empty list."""
    return [each for each in expected if normalised(each)] or [""]


def _f1(given: list[str], expected: list[str]) -> float:
    if not given or not expected:
        return float(given == expected)
    same = sum((Counter(given) & Counter(expected)).values())
    return 2 * same / (len(given) + len(expected))


def answer_scores(
    given: Sequence[str],
    expected: Sequence[Sequence[str]],
    *,
    loss: float | None = None,
    threshold: float | None = None,
) -> AnswerScores:
    """Score answers.

    Args:
        given: (n,) answers, "" for none.
        expected: (n,) the right ones for each question; empty where it has none.
        loss: The loss of the same questions, if there is one.
        threshold: See `AnswerScores`.

    Raises:
        UserError: There is nothing to score.
    """
    if not given:
        raise UserError("expected at least one question to score, got none.")
    rows = [(exact_match(one, right), f1(one, right), bool(right)) for one, right in zip(given, expected, strict=True)]
    kinds: dict[str, dict[str, float]] = {}
    if not all(has for *_, has in rows):
        for name, wanted in (("answer", True), ("no answer", False)):
            found = [row for row in rows if row[2] is wanted]
            if found:
                kinds[name] = {"questions": len(found), "exact_match": _mean(found, 0), "f1": _mean(found, 1)}
    return AnswerScores(kinds, threshold, loss, f1=_mean(rows, 1), exact_match=_mean(rows, 0))


def _mean(rows: Sequence[tuple[Any, ...]], column: int) -> float:
    return sum(row[column] for row in rows) / len(rows)


def best_threshold(scores: Sequence[float], given: Sequence[str], expected: Sequence[Sequence[str]]) -> float:
    """Return the score from which answers are best given for the largest mean F1; of equals, the one nearest to 0.

    Args:
        scores: (n,) log-odds of the answers.
        given: (n,) the answers.
        expected: (n,) the right ones for each question.
    """
    rows = sorted(
        ((value, f1(one, right) - (not right)) for value, one, right in zip(scores, given, expected, strict=True)),
        reverse=True,
    )
    # What is gained by answering those with the highest scores, against answering none.
    gains, cuts, total = [0.0], [rows[0][0] + 1.0] if rows else [0.0], 0.0
    for place, (value, gain) in enumerate(rows):
        total += gain
        following = rows[place + 1][0] if place + 1 < len(rows) else value - 2.0
        if following < value:
            gains.append(total)
            cuts.append((value + following) / 2)
    most = max(gains)
    return min((cut for cut, gain in zip(cuts, gains, strict=True) if gain >= most - 1e-9), key=abs)
