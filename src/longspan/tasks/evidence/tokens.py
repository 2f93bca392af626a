"""From documents and questions to token ids, and to batches."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset, Features, List, Value
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from longspan.data.batches.by_length import padded_length
from longspan.data.batches.encoding import mapped_once
from longspan.data.batches.streams import Stream, pad
from longspan.data.columns.parts import Alternatives, first, items_of, under
from longspan.data.columns.values import BadCell, described
from longspan.data.text.tokenization import token_facts, token_ids
from longspan.models.parts.losses import IGNORED
from longspan.training.encoder_outputs import COMPUTED

#: A document with more questions is read again for the next ones: memory grows with questions times parts.
QUESTIONS_AT_ONCE = 32

_FEATURES = {
    "input_ids": List(Value("int32")),
    "part_lengths": List(Value("int32")),
    "question_ids": List(List(Value("int32"))),
    "evidence": List(List(Value("int32"))),
    "length": Value("int32"),
}


def tokenise(examples: Dataset, tokenizer: PreTrainedTokenizerBase, name: str) -> Dataset:
    """Documents as `tokenise_document` gives them, with `evidence` and `length` in tokens; only once, then cached."""

    def convert(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        rows = [
            {**row, "evidence": evidence[first : first + QUESTIONS_AT_ONCE], "length": len(row["input_ids"])}
            for parts, questions, evidence in zip(batch["parts"], batch["questions"], batch["evidence"], strict=True)
            for first, row in zip(
                range(0, len(questions), QUESTIONS_AT_ONCE), tokenise_document(tokenizer, parts, questions), strict=True
            )
        ]
        return {column: [row[column] for row in rows] for column in _FEATURES}

    facts, slow = [*token_facts(tokenizer), QUESTIONS_AT_ONCE], not tokenizer.is_fast
    return mapped_once(examples, convert, Features(_FEATURES), facts, f"Tokenising {name}", 16, slow=slow)


def tokenise_document(
    tokenizer: PreTrainedTokenizerBase, parts: Sequence[str], questions: Sequence[str]
) -> Iterator[dict[str, Any]]:
    """Yield a document with its first questions, then with its next ones: token ids, and the lengths of its parts.

    A part, or a question, that has no tokens has the unknown one, if there is one.
    """
    document = token_ids(tokenizer, parts)
    asked = [ids if len(ids) else _nothing(tokenizer) for ids in token_ids(tokenizer, questions)]
    ids = np.concatenate([*document, np.empty(0, np.int32)])
    ids = ids if len(ids) else _nothing(tokenizer)
    lengths = [len(part) for part in document]
    if not sum(lengths):
        lengths[0] = 1
    for start in range(0, len(asked), QUESTIONS_AT_ONCE):
        some = [question.tolist() for question in asked[start : start + QUESTIONS_AT_ONCE]]
        yield {"input_ids": ids, "part_lengths": lengths, "question_ids": some}


def _nothing(tokenizer: PreTrainedTokenizerBase) -> np.ndarray:
    found = tokenizer.pad_token_id if tokenizer.unk_token_id is None else tokenizer.unk_token_id
    return np.array([found], np.int32)


def collate(examples: Sequence[Mapping[str, Any]], streams: Mapping[str, Stream]) -> dict[str, Tensor]:
    """Return a batch for `LongspanForEvidence`: one row for each document, and the questions of all of them.

    Args:
        examples: Documents as `tokenise` or `tokenise_document` gives them; with `evidence` there are labels.
        streams: Those of texts.
    """
    numbers = [np.repeat(np.arange(len(each["part_lengths"])), each["part_lengths"]) for each in examples]
    read = ("input_ids", "inputs_embeds")
    documents = [
        {"part_ids": own, **{name: each[name] for name in read if name in each}}
        for each, own in zip(examples, numbers, strict=True)
    ]
    batch = pad(documents, {**streams, **COMPUTED, "part_ids": Stream()})
    counts = torch.tensor([len(each["part_lengths"]) for each in examples])
    most = padded_length(int(counts.max()))
    batch["part_mask"] = (torch.arange(most) < counts.unsqueeze(1)).long()
    questions = pad([{"input_ids": ids} for each in examples for ids in each["question_ids"]], streams)
    batch["question_ids"], batch["question_mask"] = questions["input_ids"], questions["attention_mask"]
    asked = torch.tensor([len(each["question_ids"]) for each in examples])
    batch["question_rows"] = torch.arange(len(examples)).repeat_interleave(asked)
    if "evidence" in examples[0]:
        labels = batch["part_mask"][batch["question_rows"]] - 1
        labels = labels * -IGNORED
        for row, numbered in zip(labels, (one for each in examples for one in each["evidence"]), strict=True):
            row[torch.as_tensor(numbered, dtype=torch.long)] = 1
        batch["labels"] = labels
    return batch


class Collator:
    """Collates a process's share of a batch.

    A share without documents becomes padding with ignored labels, as all processes take part in every step.
    """

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self.streams = streams

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        if examples:
            return collate(examples, self.streams)
        pad_id = int(self.streams["input_ids"].fill)
        spare = {"input_ids": [pad_id], "part_lengths": [1], "question_ids": [[pad_id]], "evidence": [[]]}
        batch = collate([spare], self.streams)
        nothing = ("attention_mask", "part_mask", "question_mask")
        batch |= {name: torch.zeros_like(batch[name]) for name in nothing}
        return batch | {"labels": torch.full_like(batch["labels"], IGNORED)}


def truth(examples: Dataset) -> list[np.ndarray]:
    """Return, for each question of a tokenised split, which parts answer it, `(p,)` bool."""
    found = []
    for lengths, evidence in zip(examples["part_lengths"][:], examples["evidence"][:], strict=True):
        for numbers in evidence:
            gold = np.zeros(len(lengths), dtype=bool)
            gold[numbers] = True
            found.append(gold)
    return found


@dataclass(frozen=True)
class Evidence(Alternatives):
    """For each question, the numbers of the parts that answer it, counted from 0, or QMSum's spans of such."""

    target: bool = field(default=True, kw_only=True)
    kind = "a list of the numbers of parts"
    dtype: ClassVar[Any] = [["int32"]]

    def parse(self, cell: Any, folder: Path) -> list[list[int]] | None:
        own, *several = cell
        if own is not None:
            return [self._numbers(own)]
        given = first(several)
        if given is None:
            return None
        found: list[list[int]] = []
        for item in items_of(given) or []:
            spans = under(item, "relevant_text_span") if isinstance(item, dict) else None
            named = under(item, "evidence") if isinstance(item, dict) else None
            if spans is None and named is None:
                raise BadCell("no evidence", f"question {len(found) + 1} has none")
            found.append(self._numbers(named) if spans is None else self._in_spans(spans))
        return found

    def is_missing(self, value: Any) -> bool:
        return value is None

    def check(self, values: Mapping[str, Any]) -> str:
        parts, questions, evidence = (values.get(name) for name in ("parts", "questions", self.name))
        if parts is None or questions is None or evidence is None:
            return ""
        if len(evidence) != len(questions):
            return f"no evidence ({len(questions)} questions with evidence for {len(evidence)})"
        for asked, numbers in enumerate(evidence, 1):
            outside = [number for number in numbers if not 0 <= number < len(parts)]
            if outside:
                return (
                    f"evidence outside the document (question {asked} names part {outside[0]} of 0 to {len(parts) - 1})"
                )
        return ""

    def _numbers(self, cell: Any) -> list[int]:
        items = items_of(cell)
        if items is None:
            raise self._bad_cell(described(cell))
        return sorted({self._number(item) for item in items})

    def _in_spans(self, spans: Any) -> list[int]:
        found: set[int] = set()
        for span in items_of(spans) or []:
            if not isinstance(span, list) or len(span) != 2:
                raise self._bad_cell(described(span))
            first, last = map(self._number, span)
            if not first <= last < _MOST:
                raise BadCell("evidence outside the document", f"a span from part {first} to part {last}")
            found.update(range(first, last + 1))
        return sorted(found)

    def _number(self, item: Any) -> int:
        try:
            number = int(item) if isinstance(item, str) or (not isinstance(item, bool) and item == int(item)) else None
        except (TypeError, ValueError, OverflowError):
            number = None
        if number is None or not -_MOST < number < _MOST:
            raise self._bad_cell(f"{described(item)} among them")
        return number


#: More parts than any document has: numbers beyond are mistakes, and ranges up to them would fill the memory.
_MOST = 10_000_000
