"""Predictions of token classifiers, as JSON and in columns; PyTorch is not imported."""

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from longspan.data.columns.annotations import LISTS, WRITERS, Span
from longspan.machine.printing import json_text, printable, unbroken
from longspan.results import Prediction
from longspan.results.base import HIDDEN
from longspan.tasks.token_classification.labels import OUTSIDE, spans
from longspan.tasks.token_classification.reading import Split


@dataclass(frozen=True)
class WordsPrediction(Prediction):
    """The words of a document with their labels.

    Attributes:
        tokens: The words.
        labels: The label of each, in IOB2 where labels are of spans.
        scores: The probability that the model gives each label.
        offsets: The first character of each word, and the one after its last, in the text; words that came without one
            are joined by spaces.
        sentences: Number of words of each sentence.
        spans: Each span with its `type`, its `text`, its `start` and `end` in characters, and the smallest `score` of
            its words; None without such labels.
        text: The text; not in JSON.
    """

    tokens: list[str] | None = None
    labels: list[str] | None = None
    scores: list[float] | None = None
    offsets: list[list[int]] | None = None
    sentences: list[int] | None = None
    spans: list[dict[str, Any]] | None = None
    text: str | None = dataclasses.field(default=None, metadata=HIDDEN)

    @classmethod
    def of(
        cls, where: str, given: Any, words: Split, labels: list[str], scores: Sequence[float], plain: bool
    ) -> "WordsPrediction":
        """Prediction of the words of `given`, a text or words; `plain` labels are not of spans."""
        text = given if isinstance(given, str) else " ".join(words.tokens)
        shares = [round(score, 4) for score in scores]
        spans = None if plain else spans_of(words, labels, shares, text)
        return cls(where, None, words.tokens, labels, shares, words.offsets, words.sentences, spans, text)

    def annotated(self, format: str) -> str:
        """JSON of the text and its spans, which an annotation tool imports; plain labels are a span for each word.

        Args:
            format: One of `longspan.data.columns.annotations.WRITERS`.
        """
        words = [(start, end) for start, end in self.offsets or ()]
        if self.spans is None:
            pairs = zip(words, self.labels or (), strict=True)
            spans = [Span(start, end, label) for (start, end), label in pairs if label != OUTSIDE]
        else:
            spans = [Span(one["start"], one["end"], one["type"]) for one in self.spans]
        return json_text(WRITERS[format](self.text or "", spans, words))

    def to_columns(self) -> str:
        """Return a line for each word with its label, an empty line after each sentence; a comment for an error.

        `longspan.data.sources.formats.conll.read_conll` reads it back: documents begin with "# newdoc", as in CoNLL-U.
        Line breaks and tabs within words and labels become spaces.
        """
        if self.tokens is None or self.labels is None:
            return f"# error = {printable(f'{self.where}: {self.error}')}\n"
        lines, ends, total = [f"# newdoc id = {printable(self.where)}"], set(), 0
        for size in self.sentences or [len(self.tokens)]:
            total += size
            ends.add(total)
        for number, (word, label) in enumerate(zip(self.tokens, self.labels, strict=True), 1):
            # Tabs, as there may be spaces within words.
            lines.append(f"{unbroken(word)}\t{unbroken(label)}")
            lines += [""] if number in ends else []
        return "\n".join(lines) + "\n"


def spans_of(words: Split, labels: Sequence[str], scores: Sequence[float], text: str | None) -> list[dict[str, Any]]:
    """Return the spans of a document's labels in IOB2; none goes on into another sentence."""
    found, begin = [], 0
    source = " ".join(words.tokens) if text is None else text
    for size in words.sentences:
        for kind, first, last in spans(labels[begin : begin + size]):
            start, end = words.offsets[begin + first][0], words.offsets[begin + last - 1][1]
            least = min(scores[begin + first : begin + last])
            found.append({"type": kind, "text": source[start:end], "start": start, "end": end, "score": least})
        begin += size
    return found


def formats() -> Mapping[str, Callable[[Any], str]]:
    """Texts of a prediction by format; see `Task.formats`."""
    tools = {name: functools.partial(WordsPrediction.annotated, format=name) for name in WRITERS}
    return {"conll": WordsPrediction.to_columns, **tools}


ANNOTATION_FORMATS = {name: name in LISTS for name in WRITERS}
"""See `Task.annotation_formats`."""
