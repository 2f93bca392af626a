"""From a model's outputs to answers: the best spans of all windows of a document, with probabilities."""

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

#: Spans of each question that are compared, as in BERT's script.
KEPT = 20
#: Sums of a start and an end that are formed at once.
_AT_ONCE = 1 << 22


@dataclass(frozen=True)
class Span:
    """A span of a document: `text`, from character `start` to `end`, and its score: log-odds against no answer."""

    text: str
    start: int
    end: int
    score: float


@dataclass(frozen=True)
class Answered:
    """Answers of a model to one question.

    Attributes:
        where: The place of the question.
        id: Its name, if it has one.
        question: The question.
        expected: The right answers; none if the document has none.
        spans: The best spans, best first.
    """

    where: str
    id: str | None
    question: str
    expected: list[str]
    spans: list[Span]

    @property
    def score(self) -> float:
        """The score of the best span."""
        return self.spans[0].score if self.spans else -float("inf")

    def answer(self, threshold: float | None) -> str:
        """Return the best span's text, or nothing if its score is below the threshold; None means that it never is."""
        given = self.spans and (threshold is None or self.score >= threshold)
        return self.spans[0].text if given else ""

    def probabilities(self, threshold: float | None) -> tuple[list[float], float]:
        """Return the probability of each span and, if there is a threshold, that of no answer; they add up to one.

        They are among these alone, as in BERT's script.
        """
        scores = torch.tensor([span.score for span in self.spans] + [0.0] * (threshold is not None)).double()
        found = scores.softmax(0).tolist()
        return found[: len(self.spans)], found[-1] if threshold is not None else 0.0


def best_spans(start: Tensor, end: Tensor, longest: int, most: int = KEPT) -> list[tuple[float, int, int]]:
    """Return the spans with the largest sums of logits: sum, first and last token, the largest first.

    All spans of up to `longest` tokens are compared, none left out.

    Args:
        start: (m,) logits of the tokens as first ones.
        end: (m,) logits of them as last ones.
        longest: The most tokens of a span.
        most: Maximum number to return.
    """
    m = len(start)
    width = min(longest, m)
    if not m:
        return []
    ahead = torch.cat([end, end.new_full((width - 1,), -torch.inf)]).unfold(0, width, 1)
    found: list[tuple[float, int, int]] = []
    rows = max(1, _AT_ONCE // width)
    for first in range(0, m, rows):
        sums = (start[first : first + rows, None] + ahead[first : first + rows]).flatten()
        top = sums.topk(min(most, len(sums)))
        for value, place in zip(top.values.tolist(), top.indices.tolist(), strict=True):
            if value > -torch.inf:
                found.append((value, first + place // width, first + place // width + place % width))
    return sorted(found, key=lambda span: (-span[0], span[1:]))[:most]


def window_spans(row: Mapping[str, Any], logits: Tensor, longest: int) -> Iterator[Span]:
    """Yield the best spans of a window, from the logits of its row, (length, 2)."""
    offsets = torch.as_tensor(row["offsets"]).view(-1, 2)
    begin, shift = row["begin"], row["shift"]
    document = logits[begin : begin + len(offsets)].double()
    null = float(logits[0].double().sum())
    for total, first, last in best_spans(document[:, 0], document[:, 1], longest):
        start, end = int(offsets[first, 0]), int(offsets[last, 1])
        text = row["text"][start - shift : end - shift]
        kept = text.strip()
        start += len(text) - len(text.lstrip())
        if kept:
            yield Span(kept, start, start + len(kept), total - null)


def answered(rows: Iterable[Mapping[str, Any]], logits: Tensor, longest: int) -> Iterator[Answered]:
    """Yield what a model says to each question, from all windows of its document.

    Spans of overlapping windows that are the same characters are one, with the larger score.

    Args:
        rows: Windows with the columns of `windows.FEATURES`, those of one question in a row.
        logits: (sum of their lengths, 2) of starts and ends.
        longest: The most tokens of an answer.
    """
    place = 0
    for _, windows in itertools.groupby(rows, key=lambda row: row["where"]):
        found: dict[tuple[int, int], Span] = {}
        for row in windows:
            for span in window_spans(row, logits[place : place + row["length"]], longest):
                known = found.get((span.start, span.end))
                if known is None or known.score < span.score:
                    found[span.start, span.end] = span
            place += row["length"]
        spans = sorted(found.values(), key=lambda span: (-span.score, span.start, span.end))[:KEPT]
        yield Answered(row["where"], row["id"], row["question"], list(row["answers"]), spans)


def loss(logits: Tensor, lengths: Sequence[int], labels: Tensor) -> float:
    """Return the mean loss of starts and ends over windows, in nats; `labels` are (n, 2), negative to be ignored."""
    total, count = 0.0, 0
    for part, wanted in zip(logits.split(list(lengths)), labels, strict=True):
        if wanted[0] >= 0:
            total -= float(part.double().log_softmax(0)[wanted, [0, 1]].mean())
            count += 1
    return total / max(1, count)
