"""Words and phrases that speak for each class, over a sample of documents: `weighed_words` and `explained_words`."""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from transformers import PreTrainedTokenizerBase

from longspan.data.sources.formats.rows import Row
from longspan.data.text.processor import tokenizer_of
from longspan.errors import UserError
from longspan.models.wide.classifier import Wide
from longspan.report.explanation import Piece, around
from longspan.report.run_report import Word, Words
from longspan.tasks.base.case import explained
from longspan.tasks.base.examples import ExampleTask
from longspan.tasks.base.task import Run

#: Words of each class that are shown, and characters, or tokens, on either side of one in its place.
_SHOWN, _AROUND, _BESIDE = 15, 40, 6
#: Classes that have words, and the n-grams of a sample times classes that are in memory at once.
_CLASSES, _CELLS = 50, 20_000_000
#: Candidates for each word that is shown: most are parts of others.
_CANDIDATES = 20
#: Documents and seconds for explanations.
_EXPLAINED, _SECONDS = 200, 20.0


class Read(NamedTuple):
    """A document as a model reads it.

    Attributes:
        where: Its place; "" if that is not known.
        ids: `(t,)` tokens.
        named: From the first token of a phrase and the one after its last to its text, and what is before and after it.
        unknown: The token that stands for words that are not in the vocabulary.
    """

    where: str
    ids: np.ndarray
    named: Callable[[int, int], tuple[str, str, str]]
    unknown: int | None


def read_rows(run: Run, rows: Iterable[Row]) -> Iterator[Read]:
    """Yield the documents of rows that can be read, with phrases as they are in their texts."""
    processor, data = run.processor, run.recipe.data
    unknown = tokenizer_of(processor).unk_token_id
    for row in rows:
        if row.problem or processor.problem(row.values):
            continue
        encoded, places = processor.placed(row.values, data)
        ids = np.asarray(encoded.streams[next(iter(processor.streams))])
        yield Read(row.where, ids, partial(_in_text, places.text, places.spans), unknown)


def read_tokens(run: Run, examples: Dataset) -> Iterator[Read]:
    """Yield documents that are tokens already, with phrases as their tokens are written."""
    tokenizer = tokenizer_of(run.processor)
    tokens = examples.select_columns([next(iter(run.processor.streams))]).with_format("numpy")
    for row in tokens:
        (ids,) = row.values()
        yield Read("", ids, partial(_in_tokens, tokenizer, ids), tokenizer.unk_token_id)


def _in_text(text: str, spans: Any, begin: int, end: int) -> tuple[str, str, str]:
    start, stop = int(spans[begin][0]), int(spans[end - 1][1])
    if not 0 <= start < stop:
        return "", "", ""
    # A token may begin with the space before a word.
    found = text[start:stop].strip()
    start += text[start:stop].index(found)
    return found, *around(text, Piece(found, start, start + len(found), 0.0), _AROUND)


def _in_tokens(tokenizer: PreTrainedTokenizerBase, ids: np.ndarray, begin: int, end: int) -> tuple[str, str, str]:
    before, found, after = (
        tokenizer.decode(part) for part in (ids[max(0, begin - _BESIDE) : begin], ids[begin:end], ids[end:][:_BESIDE])
    )
    return found.strip(), f"{before} ", f" {after}"


def weighed_words(run: Run, read: Iterable[Read]) -> Words | None:
    """Return the n-grams that add most to the log-odds of each class by the weights of the model's count-based part.

    Nothing but these weights is computed. What an n-gram adds is compared with the mean of the other classes.
    Words are ranked by their mean score times the root of the number of documents that have them.

    Args:
        run: The trained model.
        read: Documents.

    Returns:
        None for models without such weights.
    """
    wide, config = getattr(run.model, "wide", None), run.model.config
    if not isinstance(wide, Wide) or not 2 <= config.num_labels <= _CLASSES:
        return None
    names = [config.id2label[number] for number in range(config.num_labels)]
    documents: list[Read] = []
    found = []
    size, scale = 0, float(wide.scales[0])
    for number, one in enumerate(read):
        shares = wide.ngrams(torch.from_numpy(one.ids).long().to(wide.keys.device))
        adds = shares.logits.float().cpu().numpy() * scale
        adds = (adds - adds.mean(1, keepdims=True)) * (len(names) / (len(names) - 1))
        columns = [tensor.cpu().numpy() for tensor in (shares.hash, shares.begin, shares.end)]
        documents.append(one)
        found.append((*columns, np.full(len(adds), number), adds))
        size += adds.size
        if size > _CELLS:
            break
    if not documents:
        return None
    hashes, begins, ends, owners = (np.concatenate([one[column] for one in found]) for column in range(4))
    _, first, group = np.unique(hashes, return_index=True, return_inverse=True)
    totals = np.zeros((len(first), len(names)))
    np.add.at(totals, group, np.concatenate([one[4] for one in found]))
    counts = np.bincount(np.unique(np.stack((group, owners)), axis=1)[0], minlength=len(first))
    by_class = {}
    for label, name in enumerate(names):
        words: list[Word] = []
        for number in np.argsort(-_rank(totals[:, label], counts), kind="stable")[: _SHOWN * _CANDIDATES].tolist():
            if totals[number, label] <= 0 or counts[number] < 2 or len(words) == _SHOWN:
                break
            place = int(first[number])
            document, begin, end = documents[int(owners[place])], int(begins[place]), int(ends[place])
            if document.unknown in document.ids[begin:end]:
                continue
            text, before, after = document.named(begin, end)
            # Phrases that begin or end with a sign say no more than those without it.
            if text[:1].isalnum() and text[-1:].isalnum() and not _overlaps(text, words):
                score = float(totals[number, label] / counts[number])
                words.append(Word(text, score, int(counts[number]), before, after, document.where))
        by_class[name] = words
    source = (
        f"These are n-grams of {len(documents):,} documents. What each adds to the log-odds of a class is exact: the "
        "model's count-based part has a weight for each n-gram. They are ranked by it and by how many documents have "
        "them."
    )
    return Words(source, by_class)


def explained_words(run: Run, rows: Iterable[Row]) -> Words | None:
    """Return the words with the highest removal scores in explanations of what the model says of documents.

    It stops after 200 documents or 20 seconds.

    Args:
        run: The trained model.
        rows: Documents.

    Returns:
        None where predictions are not of whole examples, or not explained by words.
    """
    if not isinstance(run.task, ExampleTask):
        return None
    began, count = time.perf_counter(), 0
    by_class: dict[str, dict[str, _Sum]] = {}
    for row in rows:
        if count == _EXPLAINED or time.perf_counter() - began > _SECONDS:
            break
        try:
            found = explained(run.task.case(run, row, "", None), "removal", False)
        except UserError:
            if count:
                # Of single documents there may be nothing to say.
                continue
            return None
        if found.places != "characters" or not found.prediction.get("probabilities"):
            return None
        count += 1
        own = by_class.setdefault(found.of, {})
        for piece in found.pieces():
            if any(map(str.isalnum, piece.text)):
                own.setdefault(piece.text.casefold(), _Sum()).add(piece, found.text, found.where)
    if not count:
        return None
    words = {
        name: [one.word() for one in sorted(own.values(), key=lambda one: -one.rank())[:_SHOWN] if one.rank() > 0]
        for name, own in sorted(by_class.items())
    }
    source = (
        f"These are words of {count:,} documents, by how much their removal would lower the log-odds of the class that "
        "the model says (first-order effect). They are ranked by it and by how many documents have them."
    )
    return Words(source, words)


@dataclass
class _Sum:
    """The scores of a word so far, and its strongest place."""

    total: float = 0.0
    documents: set[str] = field(default_factory=set)
    best: Piece | None = None
    place: tuple[str, str, str] = ("", "", "")

    def add(self, piece: Piece, text: str, where: str) -> None:
        self.total += piece.score
        self.documents.add(where)
        if self.best is None or piece.score > self.best.score:
            self.best, self.place = piece, (*around(text, piece, _AROUND), where)

    def rank(self) -> float:
        return float(_rank(np.array([self.total]), np.array([len(self.documents)]))[0])

    def word(self) -> Word:
        assert self.best is not None
        count = len(self.documents)
        return Word(self.best.text, self.total / count, count, *self.place)


def _rank(totals: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Return the mean scores of words times the roots of how many documents have them; -1 for words of a single one."""
    return np.where(counts > 1, totals / np.sqrt(counts), -1.0)


def _overlaps(text: str, words: Sequence[Word]) -> bool:
    """Return whether a phrase is a part of another one, or has it as a part."""
    own = f" {text.casefold()} "
    return any(own in f" {one.text.casefold()} " or f" {one.text.casefold()} " in own for one in words)
