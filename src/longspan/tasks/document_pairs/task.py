"""Document pairs: `DocumentPairs`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from datasets import Dataset

from longspan.data.batches.streams import Stream
from longspan.data.columns.kinds import Column, Text
from longspan.data.fingerprints import fingerprint
from longspan.data.processor import Encoded, Places
from longspan.data.text.offsets import spans
from longspan.data.text.processor import TextProcessor
from longspan.data.text.tokenization import build_tokenizer, encode_counted
from longspan.explanations.question import InputSequence
from longspan.models import LongspanForDocumentPairs
from longspan.models.embeddings.encoder import EncoderSettings
from longspan.models.embeddings.tokens import TokenSettings
from longspan.report.card import Hub
from longspan.tasks.base.case import texts_as_one
from longspan.tasks.base.classes import ClassTask
from longspan.tasks.base.task import Facts, length_facts
from longspan.tasks.document_pairs.options import PairData

#: The columns of both documents, as messages call them.
FIRST, SECOND = "first document", "second document"


@dataclass(frozen=True)
class DocumentPairProcessor(TextProcessor):
    """Two documents as token ids, with the same tokens: `input_ids` of the first, `second_ids` of the second.

    `data.max_length` cuts each of them.
    """

    @property
    def streams(self) -> Mapping[str, Stream]:
        return {**super().streams, "second_ids": Stream(fill=self.tokenizer.pad_token_id, mask="second_mask")}

    @classmethod
    def columns(cls, data: Any) -> Sequence[Column]:
        return [
            Text(FIRST, "text_column" if data.text_column else "first_column"),
            Text(SECOND, "second_column"),
        ]

    @classmethod
    def learned(cls, training: Dataset, data: Any) -> "DocumentPairProcessor":
        texts = chain(training[FIRST], training[SECOND])
        return cls(build_tokenizer(data, texts, cache_key=f"document pairs {fingerprint(training)}"))

    def encode(self, rows: Mapping[str, Sequence[Any]], data: Any) -> list[Encoded]:
        first, second = (
            encode_counted(self.tokenizer, [text or "" for text in rows[name]], data) for name in (FIRST, SECOND)
        )
        return [
            Encoded({"input_ids": one, "second_ids": other}, lost + lost_of_other)
            for (one, lost), (other, lost_of_other) in zip(first, second, strict=True)
        ]

    def places(self, values: Mapping[str, Any], encoded: Encoded, data: Any) -> Places:
        texts = [values[name] for name in (FIRST, SECOND)]
        return texts_as_one(texts, [spans(self.tokenizer, text, data.max_length, data.keep)[1] for text in texts])

    def problem(self, values: Mapping[str, Any]) -> str:
        return next((f"no {name}" for name in (FIRST, SECOND) if not (values.get(name) or "").strip()), "")


class DocumentPairs(ClassTask[PairData]):
    """One label for each pair of documents, of any length."""

    data_config = PairData
    hub = Hub("", ("document-pairs", "long-document"), ("accuracy", "f1"), {"macro_f1": "f1"})
    processor = DocumentPairProcessor
    embeddings = (TokenSettings, EncoderSettings)
    model_class = LongspanForDocumentPairs
    unused = ClassTask.unused - {"wide"}
    example = "a document"
    reads = (InputSequence(), InputSequence("second_mask", "second_counts", 1))
    data_hint = (
        "data.path=FILE (a csv, tsv, jsonl or parquet file with two documents and a label in each row), or "
        "data.train=FILE"
    )
    facts: ClassVar[Facts] = length_facts("pairs", "tokens", "median length of a pair", "longest pair")
