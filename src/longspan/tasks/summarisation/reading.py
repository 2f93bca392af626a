"""Documents with questions, and summaries, as two streams of tokens: `SummaryProcessor`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from datasets import Dataset

from longspan.data.columns.kinds import Column
from longspan.data.processor import Encoded
from longspan.data.text.offsets import spans_together
from longspan.data.text.pairs import PairProcessor, check_exact, pair_tokenizer
from longspan.data.text.tokenization import encode_counted, token_ids
from longspan.tasks.explaining import texts_as_one
from longspan.tasks.summarisation.columns import columns
from longspan.tasks.summarisation.selecting import check_packages, selected
from longspan.tasks.written import SourceText


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
        return cls(pair_tokenizer(data, chain(training["document"], summaries), f"pairs {training._fingerprint}"))

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
