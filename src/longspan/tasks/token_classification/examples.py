"""Documents of words as tokens: each word's tokens, its label at the first of them, windows where there is a limit."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from longspan.data.batches.encoding import mapped_once
from longspan.data.batches.streams import Stream
from longspan.data.text.tokenization import token_facts
from longspan.data.text.words import WordEncoder
from longspan.models.parts.losses import IGNORED
from longspan.tasks.token_classification.labelled_documents import by_sentence
from longspan.tasks.token_classification.labels import Scheme, to_iob2
from longspan.tasks.token_classification.reading import CONTEXT, WordReader

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
class Reader(WordReader):
    """Conversion of documents to examples.

    Attributes:
        tokenizer: Turns words into tokens.
        scheme: That of the labels in the data.
        labels: Numbers of labels, in IOB2.
    """

    tokenizer: PreTrainedTokenizerBase
    scheme: Scheme
    labels: Mapping[str, int]

    def tokens(self, dataset: Dataset, description: str) -> Dataset:
        """Return the examples of rows, with the columns `FEATURES`."""
        encoder = WordEncoder.of(self.tokenizer)
        facts = [*token_facts(self.tokenizer), self.limit, self.scheme, dict(self.labels), dict(self.features), CONTEXT]

        def examples(batch: dict[str, list[Any]], rows: list[int]) -> dict[str, list[Any]]:
            found: dict[str, list[Any]] = {name: [] for name in FEATURES}
            for place, number in enumerate(rows):
                row = {name: batch[name][place] for name in batch}
                for example in self.windows(encoder, row):
                    for name, value in {**example, "document": number, "where": row["where"]}.items():
                        found[name].append(value)
            return found

        return mapped_once(dataset, examples, Features(FEATURES), facts, description, with_indices=True)

    def windows(self, encoder: WordEncoder, row: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        """Yield the examples of one document: `tokens`, and perhaps `labels`, `sentences` and `feature`."""
        gold = _converted(row.get("labels"), row.get("sentences"), self.scheme)
        first = 0
        for window in self.token_windows(encoder, row):
            last = first + sum(window["kept"])
            # Words are labelled in order, each at the first of its tokens.
            numbers = iter([self.labels.get(label, IGNORED) for label in gold[first:last]])
            labels = [next(numbers, IGNORED) if kept else IGNORED for kept in window["kept"]]
            yield {**window, "labels": labels, "gold": gold[first:last]}
            first = last


def _converted(labels: Sequence[str] | None, sizes: Sequence[int] | None, scheme: Scheme) -> list[str]:
    sentences = by_sentence(labels, sizes) if labels else []
    return [label for sentence in sentences for label in to_iob2(sentence, scheme).labels]
