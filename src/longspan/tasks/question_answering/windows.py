"""Questions and documents as rows of tokens: a document in one window, or in several where a limit forces them."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from datasets import Dataset, Features, List, Value
from transformers import PreTrainedTokenizerBase

from longspan.data.batches.encoding import mapped_once
from longspan.data.text.offsets import tokens_with_offsets
from longspan.data.text.tokenization import special_tokens, token_facts, token_ids
from longspan.errors import UserError
from longspan.models.parts.losses import IGNORED
from longspan.tasks.question_answering.options import QuestionsData

FEATURES = {
    "input_ids": List(Value("int32")),
    "token_type_ids": List(Value("int8")),
    "length": Value("int32"),
    "labels": List(Value("int64")),
    "begin": Value("int32"),
    "offsets": List(Value("int32")),
    "text": Value("large_string"),
    "shift": Value("int64"),
    "question": Value("large_string"),
    "answers": List(Value("large_string")),
    "tokens": Value("int32"),
    "where": Value("string"),
    "id": Value("string"),
}
#: The label of a window without an answer: its first token.
NOTHING = [0, 0]


class NoRoom(ValueError):
    """A question that leaves no room for a document."""


@dataclass(frozen=True)
class Layout:
    """The special tokens of a row: before a question, between it and the document, and after that; int32."""

    before: np.ndarray
    between: np.ndarray
    after: np.ndarray

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> "Layout":
        """Marks of a pretrained tokenizer with a token before a pair, or the end token at both places.

        The first token means no answer.
        """
        before, between, after = special_tokens(tokenizer, 2)
        if len(before):
            return cls(before, between, after)
        end = np.array([tokenizer.eos_token_id], np.int32)
        return cls(end, end, after)

    def room(self, question: np.ndarray, limit: int) -> int:
        """Number of tokens of a document that a row takes.

        Raises:
            NoRoom: None.
        """
        taken = len(self.before) + len(question) + len(self.between) + len(self.after)
        if limit <= taken:
            raise NoRoom(
                f"the question leaves no room for the document (it takes {taken:,} of at most {limit:,} tokens, "
                "special ones included)"
            )
        return limit - taken


@dataclass(frozen=True)
class Reading:
    """Reading of questions and documents.

    Attributes:
        tokenizer: The tokenizer.
        limit: The most tokens that are read at once; 0 for no limit.
        overlap: Number of tokens that neighbouring windows share, half a window at most.
    """

    tokenizer: PreTrainedTokenizerBase
    limit: int
    overlap: int

    def rows(self, batch: Mapping[str, Sequence[Any]]) -> Iterator[list[dict[str, Any]] | NoRoom]:
        """Yield the windows of each question, or the reason why it has no windows.

        Args:
            batch: Columns question, context, where, id, and answers if they are known.
        """
        layout = Layout.of(self.tokenizer)
        questions = token_ids(self.tokenizer, batch["question"])
        different = list(dict.fromkeys(batch["context"]))
        read = dict(zip(different, tokens_with_offsets(self.tokenizer, different), strict=True))
        for number, question in enumerate(questions):
            text, where = batch["context"][number], batch["where"][number]
            ids, offsets = read[text]
            answers = batch["answers"][number] if "answers" in batch else None
            wanted = None if answers is None else _tokens_of(answers, offsets)
            try:
                places = self._window_spans(layout, question, len(ids), wanted, where)
            except NoRoom as error:
                yield error
                continue
            head = np.concatenate([layout.before, question, layout.between])
            known = {
                "begin": len(head),
                "question": batch["question"][number],
                "answers": [] if answers is None else answers["text"],
                "tokens": len(ids),
                "where": where,
                "id": batch["id"][number],
            }
            yield [known | self._row(layout, head, ids, offsets, text, start, end, wanted) for start, end in places]

    def _window_spans(
        self, layout: Layout, question: np.ndarray, length: int, wanted: tuple[int, int] | None, where: str
    ) -> list[tuple[int, int]]:
        """Return where windows begin and end, one of which has the wanted tokens."""
        if not self.limit:
            return [(0, length)]
        room = layout.room(question, self.limit)
        if length <= room:
            return [(0, length)]
        step = room - min(self.overlap, room // 2)
        starts = [*range(0, length - room, step), length - room]
        if wanted is not None and wanted[0] >= 0:
            first, last = wanted
            if last - first >= room:
                raise UserError(
                    f"{where}: expected an answer that fits into a window, got one of {last - first + 1:,} tokens "
                    f"where the question leaves room for {room:,}; raise data.max_length."
                )
            if not any(start <= first and last < start + room for start in starts):
                starts = sorted([*starts, min(max(0, (first + last - room) // 2), length - room)])
        return [(start, start + room) for start in starts]

    def _row(
        self,
        layout: Layout,
        head: np.ndarray,
        ids: np.ndarray,
        offsets: np.ndarray,
        text: str,
        start: int,
        end: int,
        wanted: tuple[int, int] | None,
    ) -> dict[str, Any]:
        row = np.concatenate([head, ids[start:end], layout.after])
        labels = NOTHING
        if wanted is not None and wanted[0] == IGNORED:
            labels = [IGNORED, IGNORED]
        elif wanted is not None and wanted[0] >= start and wanted[1] < end:
            labels = [len(head) + wanted[0] - start, len(head) + wanted[1] - start]
        here = offsets[start:end]
        shift, stop = (int(here[0, 0]), int(here[-1, 1])) if len(here) else (0, 0)
        return {
            "input_ids": row,
            "token_type_ids": np.repeat([0, 1], [len(head), len(row) - len(head)]).astype(np.int8),
            "length": len(row),
            "labels": labels,
            "offsets": here.reshape(-1),
            "text": text[shift:stop],
            "shift": shift,
        }


def _tokens_of(answers: Mapping[str, Sequence[Any]], offsets: np.ndarray) -> tuple[int, int] | None:
    """Return the first and last token of the first answer, counted from 0; None if there is no answer.

    Both are IGNORED if the tokenizer drops all of its characters.
    """
    if not answers["text"]:
        return None
    start = answers["start"][0]
    end = start + len(answers["text"][0])
    first, last = np.searchsorted(offsets[:, 1], start, "right"), np.searchsorted(offsets[:, 0], end, "left") - 1
    return (int(first), int(last)) if first <= last else (IGNORED, IGNORED)


def tokenize_questions(dataset: Dataset, reading: Reading, description: str) -> Dataset:
    """Return the windows of all questions, those of one in a row, with the columns of FEATURES; the result is cached.

    Args:
        dataset: Columns question, context, answers, id and where, as from `longspan.data.sources.loading.load`.
        reading: How they are read.
        description: The label of the progress bar.

    Returns:
        `labels` are the first and last token of the first answer in the row, NOTHING where it is not there; `begin` is
        the place of the document's first token, `tokens` the document's length. `offsets` has the first character and
        the end of each token of the document. `text` is the document from character `shift` to the window's end.

    Raises:
        UserError: A question leaves no room for its document, or an answer does not fit into a window.
    """

    def examples(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        found: list[dict[str, Any]] = []
        for where, rows in zip(batch["where"], reading.rows(batch), strict=True):
            if isinstance(rows, NoRoom):
                raise UserError(f"{where}: {rows}; raise data.max_length, or leave it out.")
            found += rows
        return {name: [row[name] for row in found] for name in FEATURES}

    facts = [*token_facts(reading.tokenizer), "windows", 1, reading.limit, reading.overlap]
    slow = not reading.tokenizer.is_fast
    return mapped_once(dataset, examples, Features(FEATURES), facts, description, slow=slow)


def reading_of(tokenizer: PreTrainedTokenizerBase, data: QuestionsData, most: int | None) -> Reading:
    """Reading of questions by a model that takes at most `most` tokens at once, None for any number."""
    limits = [limit for limit in (data.max_length, most) if limit]
    return Reading(tokenizer, min(limits, default=0), data.overlap)
