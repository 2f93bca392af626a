"""Documents as words and windows of tokens, without PyTorch: columns that are read, words of raw text, `WordReader`."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from longspan.data.columns.annotations import AnnotatedLabels, AnnotatedSentences, AnnotatedWords
from longspan.data.columns.kinds import Column, WordLabels
from longspan.data.sources.formats.rows import Row
from longspan.data.text.words import WordEncoder
from longspan.errors import UserError
from longspan.machine.printing import note
from longspan.tasks.token_classification.options import TokenData

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_LINE = re.compile(r"[^\r\n]*[\r\n]*")
#: Share of a window that is context of its words on either side.
CONTEXT = 4
#: Rows of one word, after which predictions say so.
_ONE_WORD_ROWS = 10


def columns(data: TokenData, *, raw: bool = False) -> list[Column]:
    """Return the columns that are read; `raw` words may be a text that is to be split."""
    names: dict[str, Any] = {
        "text": data.text_column,
        "label": data.label_column,
        "characters": data.tokens == "characters",
    }
    words = AnnotatedWords(
        "tokens", "text_column", documents=data.unit == "document", strip=data.strip, raw=raw, **names
    )
    feature = [WordLabels("feature", "feature_column", target=False)] if data.feature_column else []
    sentences = AnnotatedSentences("sentences", "sentences_column", column=data.sentences_column, **names)
    return [words, *feature, sentences, AnnotatedLabels("labels", "label_column", unseen=True, **names)]


@dataclass(frozen=True)
class Split:
    """A text as words, with their offsets and how many each line of it has."""

    tokens: list[str]
    offsets: list[list[int]]
    sentences: list[int]


def split_text(tokenizer: "Tokenizer", text: str) -> Split:
    """Return the words of raw text, as the tokenizer splits it; each line is a sentence."""
    splitter = tokenizer.pre_tokenizer
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


class RowWords:
    """The words of rows; a note says once where all of the first rows have a single one.

    Args:
        tokenizer: What splits raw text.
    """

    def __init__(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer
        self._single_words: int | None = 0

    def __call__(self, row: Row) -> Split | None:
        """The words of a row; None if there are none."""
        given = row.values.get("tokens")
        words = split_text(self._tokenizer, given) if isinstance(given, str) else None
        if isinstance(given, list):
            words = joined(given, row.values.get("sentences"))
        if words is None or not words.tokens:
            return None
        if self._single_words is not None:
            self._single_words = self._single_words + 1 if len(words.tokens) == 1 else None
        if self._single_words == _ONE_WORD_ROWS:
            note(
                f"each of the first {_ONE_WORD_ROWS} rows has one word, which is read without context; where they are "
                "words of sentences, join the rows of each sentence"
            )
            self._single_words = None
        return words


@dataclass(frozen=True)
class WordReader:
    """Conversion of words to windows of tokens.

    Attributes:
        special: Special tokens before and after a text.
        limit: Maximum number of tokens of a window; 0 for none.
        features: Numbers of the feature's values, from 1.
    """

    special: tuple[Sequence[int], Sequence[int]]
    limit: int
    features: Mapping[str, int]

    def token_windows(self, encoder: WordEncoder, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the windows of one document: `tokens`, and perhaps `sentences` and `feature`.

        Each has columns with a number for each token; `kept` is whether a word is labelled at it.
        """
        before, after = self.special
        words, found = self.cut(encoder, row["tokens"])
        sentences = _sentence_numbers(row.get("sentences"), len(words))
        features = [self.features.get(value, 0) for value in row.get("feature") or [""] * len(words)]
        for window in found:
            ids, kept, feature = list(before), [False] * len(before), [0] * len(before)
            sentence = [sentences[window.start]] * len(before)
            for word in range(window.start, window.end):
                size = len(words[word])
                ids += words[word]
                kept += [window.first <= word < window.last] + [False] * (size - 1)
                sentence += [sentences[word]] * size
                feature += [features[word]] * size
            yield {
                "input_ids": [*ids, *after],
                "sentence_ids": sentence + [sentences[window.end - 1]] * len(after),
                "feature_ids": feature + [0] * len(after),
                "kept": kept + [False] * len(after),
                "length": len(ids) + len(after),
            }

    def word_of_each(self, encoder: WordEncoder, tokens: Sequence[str]) -> list[np.ndarray]:
        """Return the number of the word of each token of each window, -1 for special tokens."""
        before, after = (np.full(len(special), -1) for special in self.special)
        words, found = self.cut(encoder, tokens)
        sizes = np.array([len(ids) for ids in words])
        own = [np.repeat(np.arange(one.start, one.end), sizes[one.start : one.end]) for one in found]
        return [np.concatenate([before, each, after]) for each in own]

    def cut(self, encoder: WordEncoder, tokens: Sequence[str]) -> tuple[list[list[int]], list["Window"]]:
        """Return the tokens of each word, and the windows of the document."""
        words, special = encoder(tokens), sum(map(len, self.special))
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
        last = int(np.searchsorted(ends, starts[start] + limit - limit // CONTEXT, side="right"))
        last = max(last, first + 1)
        found.append(Window(start, end, first, last))
        first = last
        following = int(np.searchsorted(starts, starts[first] - limit // CONTEXT, side="left"))
        start = min(max(following, start + 1), first)


def _sentence_numbers(sizes: Sequence[int] | None, words: int) -> list[int]:
    if not sizes:
        return [0] * words
    return np.repeat(np.arange(len(sizes)), sizes).tolist()
