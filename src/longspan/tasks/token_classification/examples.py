"""Documents of words as tokens: each word's tokens, its label at the first of them, windows where there is a limit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from longspan.data.batches.streams import Stream
from longspan.data.text.tokenization import map_once
from longspan.data.text.words import WordEncoder
from longspan.errors import UserError
from longspan.models.parts.losses import IGNORED
from longspan.tasks.token_classification.labelled_documents import by_sentence
from longspan.tasks.token_classification.labels import Scheme, to_iob2

#: Share of a window that is context of its words on either side.
_CONTEXT = 4
FEATURES = {
    "input_ids": List(Value("int32")),
    "labels": List(Value("int64")),
    "sentence_ids": List(Value("int32")),
    "feature_ids": List(Value("int64")),
    "kept": List(Value("bool")),
    "gold": List(Value("string")),
    "length": Value("int32"),
    "document": Value("int64"),
    "where": Value("string"),
}
PER_TOKEN = {"labels": Stream(fill=IGNORED), "sentence_ids": Stream(), "feature_ids": Stream()}
"""Columns with a number for each token, and their values at padding."""


@dataclass(frozen=True)
class Reader:
    """Conversion of documents to examples.

    Attributes:
        tokenizer: Turns words into tokens.
        limit: Maximum number of tokens of a window; 0 for none.
        scheme: That of the labels in the data.
        labels: Numbers of labels, in IOB2.
        features: Numbers of the feature's values, from 1.
    """

    tokenizer: PreTrainedTokenizerBase
    limit: int
    scheme: Scheme
    labels: Mapping[str, int]
    features: Mapping[str, int]

    def tokens(self, dataset: Dataset, description: str) -> Dataset:
        """Return the examples of rows, with the columns `FEATURES`."""
        encoder = WordEncoder(self.tokenizer)
        facts = [self.limit, self.scheme, dict(self.labels), dict(self.features), _CONTEXT]

        def examples(batch: dict[str, list[Any]], rows: list[int]) -> dict[str, list[Any]]:
            found: dict[str, list[Any]] = {name: [] for name in FEATURES}
            for place, number in enumerate(rows):
                row = {name: batch[name][place] for name in batch}
                for example in self.windows(encoder, row):
                    for name, value in {**example, "document": number, "where": row["where"]}.items():
                        found[name].append(value)
            return found

        return map_once(dataset, examples, Features(FEATURES), facts, self.tokenizer, description, with_indices=True)

    def windows(self, encoder: WordEncoder, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the examples of one document: `tokens`, and perhaps `labels`, `sentences` and `feature`."""
        before, after = _special(self.tokenizer)
        words, found = self.cut(encoder, row["tokens"])
        sentences = _sentence_numbers(row.get("sentences"), len(words))
        gold = _converted(row.get("labels"), row.get("sentences"), self.scheme)
        numbers = [self.labels.get(label, IGNORED) for label in gold] if gold else [IGNORED] * len(words)
        features = [self.features.get(value, 0) for value in row.get("feature") or [""] * len(words)]
        for window in found:
            ids, labels, sentence, feature, kept = list(before), [IGNORED] * len(before), [], [], [False] * len(before)
            sentence += [sentences[window.start]] * len(before)
            feature += [0] * len(before)
            for word in range(window.start, window.end):
                own = window.first <= word < window.last
                rest = len(words[word]) - 1
                ids += words[word]
                labels += [numbers[word] if own else IGNORED] + [IGNORED] * rest
                kept += [own] + [False] * rest
                sentence += [sentences[word]] * (rest + 1)
                feature += [features[word]] * (rest + 1)
            ids, kept, labels = [*ids, *after], kept + [False] * len(after), labels + [IGNORED] * len(after)
            yield {
                "input_ids": ids,
                "labels": labels,
                "sentence_ids": sentence + [sentences[window.end - 1]] * len(after),
                "feature_ids": feature + [0] * len(after),
                "kept": kept,
                "gold": gold[window.first : window.last],
                "length": len(ids),
            }

    def word_of_each(self, encoder: WordEncoder, tokens: Sequence[str]) -> list[np.ndarray]:
        """Return the number of the word of each token of each window, -1 for special tokens."""
        before, after = (np.full(len(special), -1) for special in _special(self.tokenizer))
        words, found = self.cut(encoder, tokens)
        sizes = np.array([len(ids) for ids in words])
        own = [np.repeat(np.arange(one.start, one.end), sizes[one.start : one.end]) for one in found]
        return [np.concatenate([before, each, after]) for each in own]

    def cut(self, encoder: WordEncoder, tokens: Sequence[str]) -> tuple[list[list[int]], list["Window"]]:
        """Return the tokens of each word, and the windows of the document."""
        words, special = encoder(tokens), sum(map(len, _special(self.tokenizer)))
        room = self.limit - special if self.limit else 0
        if self.limit and room < 1:
            raise UserError(
                f"data.max_length must be at least {special + 1}, as the tokenizer adds special tokens, got "
                f"{self.limit}; raise it."
            )
        if room:
            # Of a word that no window holds, what fits tells most.
            words = [ids[:room] for ids in words]
        return words, cut([len(ids) for ids in words], room)


class Window(NamedTuple):
    """Words `start` to `end` of a document, of which `first` to `last` are labelled there."""

    start: int
    end: int
    first: int
    last: int


def cut(sizes: Sequence[int], limit: int) -> list[Window]:
    """Return the windows of a document from the `sizes` of its words in tokens, none with more than `limit` tokens (0:
    no limit).

    Windows overlap by half: each word is labelled in one of them, those at the ends of a window in its neighbour, where
    they have more context.
    """
    ends = np.cumsum(sizes)
    if not limit or not len(ends) or ends[-1] <= limit:
        return [Window(0, len(sizes), 0, len(sizes))]
    starts = ends - np.asarray(sizes)
    found: list[Window] = []
    start = first = 0
    while True:
        end = int(np.searchsorted(ends, starts[start] + limit, side="right"))
        if end <= first:
            # A word so long that it needs a window for itself.
            start = first
            continue
        if end >= len(sizes):
            found.append(Window(start, len(sizes), first, len(sizes)))
            return found
        # Words up to the last quarter are labelled here, and the next window begins a quarter before that.
        last = int(np.searchsorted(ends, starts[start] + limit - limit // _CONTEXT, side="right"))
        last = max(last, first + 1)
        found.append(Window(start, end, first, last))
        first = last
        following = int(np.searchsorted(starts, starts[first] - limit // _CONTEXT, side="left"))
        start = min(max(following, start + 1), first)


def _sentence_numbers(sizes: Sequence[int] | None, words: int) -> list[int]:
    if not sizes:
        return [0] * words
    return np.repeat(np.arange(len(sizes)), sizes).tolist()


def _converted(labels: Sequence[str] | None, sizes: Sequence[int] | None, scheme: Scheme) -> list[str]:
    sentences = by_sentence(labels, sizes) if labels else []
    return [label for sentence in sentences for label in to_iob2(sentence, scheme).labels]


def _special(tokenizer: PreTrainedTokenizerBase) -> tuple[list[int], list[int]]:
    """Return the special tokens before and after a text."""
    inner = tokenizer.encode("a", add_special_tokens=False)
    whole = tokenizer.encode("a")
    place = next((i for i in range(len(whole) - len(inner) + 1) if whole[i : i + len(inner)] == inner), 0)
    return whole[:place], whole[place + len(inner) :]
