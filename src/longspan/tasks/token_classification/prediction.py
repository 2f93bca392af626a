"""Predictions of token classifiers, as JSON and in columns, and their explanations."""

import dataclasses
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedTokenizerBase

from longspan.data.batches.streams import pad
from longspan.data.columns.annotations import WRITERS, Span
from longspan.data.processor import Places
from longspan.data.sources.formats.rows import Row
from longspan.data.text.processor import tokenizer_of
from longspan.data.text.words import WordEncoder
from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.machine.printing import json_text, printable, unbroken
from longspan.results import Prediction
from longspan.results.base import HIDDEN
from longspan.tasks.base.case import Case, class_asked, place_of
from longspan.tasks.base.task import Run
from longspan.tasks.token_classification.examples import PER_TOKEN, Reader
from longspan.tasks.token_classification.labels import OUTSIDE, spans

_LINE = re.compile(r"[^\r\n]*[\r\n]*")


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


@dataclass(frozen=True)
class Split:
    """A text as words, with their offsets and how many each line of it has."""

    tokens: list[str]
    offsets: list[list[int]]
    sentences: list[int]


def split_text(tokenizer: PreTrainedTokenizerBase, text: str) -> Split:
    """Return the words of raw text, as the tokenizer splits it; each line is a sentence."""
    splitter = tokenizer.backend_tokenizer.pre_tokenizer
    words: list[str] = []
    offsets: list[list[int]] = []
    sentences = []
    for line in _LINE.finditer(text):
        found = _words(splitter, line[0])
        words += [line[0][start:end] for start, end in found]
        offsets += [[line.start() + start, line.start() + end] for start, end in found]
        sentences += [len(found)] if found else []
    return Split(words, offsets, sentences)


def _words(splitter: Any, line: str) -> list[tuple[int, int]]:
    """Return where the words of a line are, without the space around them."""
    if splitter is None:
        return [found.span() for found in re.finditer(r"\S+", line)]
    found = []
    for _, (start, end) in splitter.pre_tokenize_str(line):
        word = line[start:end]
        start += len(word) - len(word.lstrip())
        end -= len(word) - len(word.rstrip())
        if start < end:
            found.append((start, end))
    return found


def joined(tokens: Sequence[str], sentences: Sequence[int] | None) -> Split:
    """Return words that came without a text, as if joined by spaces."""
    offsets, start = [], 0
    for token in tokens:
        offsets.append([start, start + len(token)])
        start += len(token) + 1
    return Split(list(tokens), offsets, list(sentences or [len(tokens)]))


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


def word_case(run: Run, row: Row, of: str, at: float | None, prediction: WordsPrediction, reader: Reader) -> Case:
    """Case of the label of the word with the number `at`.

    What speaks for it are the words of the window in which it is labelled.

    Args:
        run: The run.
        row: The document.
        of: The label; by default the one that it gets.
        at: The number of the word, from 1; by default the first one with the rarest label.
        prediction: The labels of all words.
        reader: Converter of words to examples.

    Raises:
        UserError: See `Task.case`.
    """
    model, config = run.model, run.model.config
    words, labels, offsets = prediction.tokens, prediction.labels, prediction.offsets
    if words is None or labels is None or offsets is None:
        raise UserError(f"{row.where}: expected words to explain, got {prediction.error}; choose another row.")
    place = place_of(at, labels, "a word")
    encoder = WordEncoder(tokenizer_of(run.processor))
    given = {"tokens": words, "sentences": prediction.sentences, "feature": row.values.get("feature")}
    # Each word is labelled in one window, at the first of its tokens.
    examples = list(reader.windows(encoder, given))
    number = int(np.searchsorted(np.cumsum([sum(one["kept"]) for one in examples]), place, "right"))
    example, own = examples[number], reader.word_of_each(encoder, words)[number]
    at_token = int(np.flatnonzero(own == place)[0])
    streams = {**run.processor.streams, **PER_TOKEN}
    batch = {name: each.to(model.device) for name, each in pad([example], streams).items()}
    names = [config.id2label[number] for number in range(config.num_labels)]
    asked = class_asked(names, of or labels[place]).at(at_token)
    with torch.no_grad():
        logits = model(**batch).logits.float().cpu()
    text = row.values["tokens"] if isinstance(row.values["tokens"], str) else " ".join(words)
    spans = np.where(own[:, None] < 0, -1, np.array(offsets)[own.clip(0)])
    shares = logits[0, at_token].softmax(-1).tolist()
    said = {"label": labels[place], "probabilities": dict(zip(names, shares, strict=True))}
    question = Question(model, batch, asked.value, asked.share, masked=False, at=at_token)
    where = f"{row.where}, word {place + 1:,} ({words[place]})"
    return Case(where, asked, question, Places("characters", spans, text), said, outputs=logits)
