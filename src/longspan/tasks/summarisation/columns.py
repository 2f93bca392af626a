"""Columns: documents, questions and summaries.

Tables have `document`, perhaps `question`, and `summary`; or, so that a document with several questions is there once,
`questions`, a list of {"question": ..., "summary": ...}. The files of QMSum (Zhong et al. 2021,
https://aclanthology.org/2021.naacl-main.472) have the same under names of their own: general queries come first.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from datasets import Dataset

from longspan.data.batches.encoding import mapped_once
from longspan.data.columns.kinds import Column
from longspan.data.columns.parts import (
    GENERAL,
    SPECIFIC,
    TURNS,
    Alternatives,
    Document,
    Questions,
    first,
    items_of,
)
from longspan.tasks.summarisation.options import SummaryData


def columns(data: SummaryData) -> Sequence[Column]:
    """Return the columns that are read."""
    setting = "text_column" if data.text_column else "document_column"
    several = (data.questions_column, GENERAL, SPECIFIC)
    # By its usual name, it is read where it is there.
    asked = data.question_column != SummaryData.question_column
    return [
        Document("document", setting, names=(getattr(data, setting), TURNS)),
        Target("questions", "question_column", names=(data.question_column, *several), required=asked),
        Summaries("summaries", "summary_column", names=(data.summary_column, *several)),
    ]


@dataclass(frozen=True)
class Target(Questions):
    """The questions about a document, if there are any."""

    def parse(self, cell: Any, folder: Path) -> list[str] | None:
        own, listed, *queries = cell
        if isinstance(own, str) and not own.strip():
            own = None
        found = super().parse([own, listed, _joined(queries)], folder)
        return found or None


@dataclass(frozen=True)
class Summaries(Alternatives):
    """The summary of a document, or one for each of its questions."""

    target: bool = field(default=True, kw_only=True)
    kind = "a summary"
    dtype: ClassVar[Any] = ["large_string"]

    def parse(self, cell: Any, folder: Path) -> list[str] | None:
        own, listed, *queries = cell
        given = own if own is not None else first([listed, _joined(queries)])
        if given is None:
            return None
        return self._texts([given] if own is not None else given, "summary", "answer")

    def is_missing(self, value: Any) -> bool:
        return not value

    def check(self, values: Mapping[str, Any]) -> str:
        questions, summaries = values.get("questions"), values.get(self.name)
        if summaries is None or len(summaries) == len(questions or [""]):
            return ""
        return f"no summary ({len(questions or [])} questions with summaries for {len(summaries)})"


def each_question(rows: Dataset) -> Dataset:
    """Return one row for each question, whose lists have one item; documents without a question stay as they are."""

    def expand(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {name: [] for name in batch}
        for number, summaries in enumerate(batch["summaries"]):
            asked = batch["questions"][number]
            for place, summary in enumerate(summaries):
                one = {"questions": asked and [asked[place]], "summaries": [summary]}
                if len(summaries) > 1:
                    one["where"] = f"{batch['where'][number]}, question {place + 1}"
                for name in batch:
                    found[name].append(one.get(name, batch[name][number]))
        return found

    return mapped_once(rows, expand, rows.features, ["each question"], "Reading questions", batch_size=16)


def _joined(queries: Sequence[Any]) -> list[Any] | None:
    """Return the items of all lists; None if there is no list."""
    lists = [items_of(each) for each in queries if each is not None]
    return [item for items in lists for item in items or []] if lists else None
