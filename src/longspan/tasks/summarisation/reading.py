"""Documents with questions, and summaries, as two streams of tokens: `SummaryProcessor`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from datasets import Dataset

from longspan.data.columns.kinds import Column
from longspan.data.fingerprints import fingerprint
from longspan.data.processor import Encoded
from longspan.data.text.offsets import spans_together
from longspan.data.text.pairs import PairProcessor, check_exact, pair_tokenizer
from longspan.data.text.tokenization import encode_counted, token_ids
from longspan.machine.imports import require
from longspan.tasks.base.baselines.retrieval import BM25_PACKAGES, bm25, smoothed
from longspan.tasks.base.case import texts_as_one
from longspan.tasks.base.seq2seq.explaining import SourceText
from longspan.tasks.summarisation.columns import columns
from longspan.tasks.summarisation.scores import sentences


@dataclass(frozen=True)
class SummaryProcessor(PairProcessor):
    """The source is the question, an end token, the document and an end token; or the document and an end token.

    Of a document of more than `data.select_words` words, the parts are read that match the question best.
    """

    @classmethod
    def columns(cls, data: Any) -> Sequence[Column]:
        return columns(data)

    @classmethod
    def learned(cls, training: Dataset, data: Any) -> "SummaryProcessor":
        check_exact(data)
        summaries = (text for row in training.select_columns(["questions", "summaries"]) for text in _texts(row))
        return cls(pair_tokenizer(data, chain(training["document"], summaries), f"pairs {fingerprint(training)}"))

    def encode(self, rows: Mapping[str, Sequence[Any]], data: Any) -> list[Encoded]:
        found = []
        asked = rows.get("questions") or [None] * len(rows["document"])
        for number, (document, questions) in enumerate(zip(rows["document"], asked, strict=True)):
            ids, lost = self.source(document or "", questions[0] if questions else "", data)
            summaries = rows["summaries"][number] or [""]
            target = [*token_ids(self.tokenizer, summaries[:1])[0].tolist(), self.tokenizer.eos_token_id]
            found.append(Encoded({"input_ids": ids, "labels": target}, lost))
        return found

    def source(self, document: str, question: str, data: Any) -> tuple[list[int], int]:
        """Return the token ids of a document with a question, "" for none, and how many of its tokens are left out."""
        part = selected(document, question, data.select_words)
        left_out = 0
        if part is not document:
            whole, kept = (len(ids) for ids in token_ids(self.tokenizer, [document, part]))
            left_out = max(1, whole - kept)
        if not question:
            ids, lost = encode_counted(self.tokenizer, [part], data)[0]
        else:
            ids, lost = encode_counted(self.tokenizer, [question], data, pairs=[part])[0]
        return ids, lost + left_out

    def source_text(self, document: str, question: str, data: Any) -> SourceText:
        """Return the same with the characters of its tokens: of the question, and of the parts of the document."""
        ids, lost = self.source(document, question, data)
        texts = [*([question] if question else []), selected(document, question, data.select_words)]
        _, characters, _ = spans_together(self.tokenizer, texts, data.max_length, data.keep)
        return SourceText(ids, texts_as_one(texts, characters), lost)

    @classmethod
    def check(cls, model: Mapping[str, Any], data: Any) -> None:
        super().check(model, data)
        if data.select_words:
            check_packages()

    def facts(self, data: Any) -> Any:
        return [*super().facts(data), data.select_words]

    def problem(self, values: Mapping[str, Any]) -> str:
        return "" if (values.get("document") or "").strip() else "empty document"

    def fingerprint(self) -> str:
        return f"summaries {super().fingerprint()}"


def _texts(row: Mapping[str, Any]) -> Iterator[str]:
    yield from row["questions"] or []
    yield from row["summaries"]


#: Parts of documents.
LINES, SENTENCES = UNITS = ("lines", "sentences")


def units(document: str, kind: str) -> list[str]:
    """Return the parts of a document in order: its lines, such as turns of a meeting, or its sentences."""
    found = sentences(document) if kind == SENTENCES else [line.strip() for line in document.splitlines()]
    return [one for one in found if one]


def fill(parts: Sequence[str], order: Sequence[int], words: int) -> list[str]:
    """Return parts, best first, until they have so many words, in the order of the document.

    Parts are whole but for the last one taken, of which only the first words are left.

    Args:
        parts: The parts of a document.
        order: Their numbers, best first; others are left out.
        words: Maximum number of words.
    """
    taken: dict[int, str] = {}
    left = words
    for number in order:
        if left <= 0:
            break
        own = parts[number].split()
        taken[number] = " ".join(own[:left])
        left -= len(own)
    return [taken[number] for number in sorted(taken)]


#: The standard deviation, in parts, of the Gaussian that averages scores. On QMSum's validation split, 1,000 words then
#: have 48 % of the words of turns marked as evidence, or of 1,000 of them; 33 % without averaging.
SPREAD = 8.0


def check_packages() -> None:
    """Raise UserError unless the packages are installed that `data.select_words` needs."""
    for package in BM25_PACKAGES:
        require(package, "data.select_words", instead="leave it out")


def selected(document: str, question: str, words: int) -> str:
    """Return a document, or of one with more words those of its parts that match the question best, in their order.

    Parts are lines, such as turns of a meeting, or the sentences of a document that is one line. Their scores are means
    of BM25 over neighbouring parts, so that what is read is passages rather than single lines. Without a question, and
    among parts that match it equally well, the first and the last parts come first.

    Args:
        document: The document.
        question: The question, "" for none.
        words: Maximum number of words; 0 for no limit.
    """
    if not words or len(document.split()) <= words:
        return document
    parts = units(document, LINES)
    kind = LINES if len(parts) > 1 else SENTENCES
    parts = units(document, kind)
    return ("\n" if kind == LINES else " ").join(fill(parts, ranked(parts, question), words))


def ranked(parts: Sequence[str], question: str, spread: float = SPREAD) -> list[int]:
    """Return the numbers of parts, those first that match a question best.

    Args:
        parts: The parts of a document.
        question: The question, "" for none.
        spread: The standard deviation, in parts, of the Gaussian that averages scores; 0 for no averaging.
    """
    scores = np.zeros(len(parts))
    if question:
        check_packages()
        scores = smoothed(bm25(parts, [question])[0], spread)
    places = np.arange(len(parts))
    order: list[int] = np.lexsort((np.minimum(places, places[::-1]), -scores)).tolist()
    return order
