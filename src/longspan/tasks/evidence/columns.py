"""What is read: documents in parts, their questions, and the parts that answer each.

Tables have `parts`, and either `question` with `evidence` or, so that a document with several questions is there once,
`questions`, a list of {"question": ..., "evidence": [...]}. The files of QMSum (Zhong et al. 2021,
https://aclanthology.org/2021.naacl-main.472) have the same under names of their own.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from longspan.data.columns.kinds import Column
from longspan.data.columns.values import BadCell, described, json_list

#: QMSum's names of parts and of questions.
TURNS, QUERIES = "meeting_transcripts", "specific_query_list"


@dataclass(frozen=True)
class _Alternatives(Column):
    """A column that a table may have under any one of several names.

    Attributes:
        names: The names in the source.
    """

    names: tuple[str, ...] = field(default=(), kw_only=True)
    shares: ClassVar[bool] = True

    def sources(self, name: str) -> Sequence[str]:
        return self.names

    def absent(self, name: str, present: Collection[str]) -> list[str]:
        return [] if not self.required or any(source in present for source in self.names) else [self.names[0]]

    def cell(self, cells: Sequence[Any]) -> Any:
        return list(cells)


@dataclass(frozen=True)
class Parts(_Alternatives):
    """The parts of a document: a list of texts, or of {"speaker": ..., "content": ...}, then "speaker: content"."""

    kind = "a list of texts"

    @property
    def feature(self) -> Any:
        from datasets import List, Value

        return List(Value("large_string"))

    def parse(self, cell: Any, folder: Path) -> list[str] | None:
        given = _first(cell)
        if given is None:
            return None
        items = _items(given)
        if items is None:
            raise self._bad_cell(described(given))
        parts = [self._text(item) for item in items]
        empty = next((number for number, part in enumerate(parts) if not part.strip()), None)
        if empty is not None:
            raise BadCell("an empty part", f"number {empty} of {len(parts)}, counted from 0")
        if not parts:
            raise BadCell("an empty document")
        return parts

    def _text(self, item: Any) -> str:
        if isinstance(item, str):
            return item
        if isinstance(item, dict) and isinstance(item.get("content"), str):
            speaker = item.get("speaker")
            return f"{speaker}: {item['content']}" if isinstance(speaker, str) and speaker else str(item["content"])
        raise self._bad_cell(f"{described(item)} among its items")


@dataclass(frozen=True)
class Questions(_Alternatives):
    """The questions about a document: one text, or a list of texts or of objects with a "question"."""

    kind = "a question"
    #: Several questions are about one document.
    identifies = False

    @property
    def feature(self) -> Any:
        from datasets import List, Value

        return List(Value("large_string"))

    def parse(self, cell: Any, folder: Path) -> list[str] | None:
        given = _first(cell)
        if given is None:
            return None
        if isinstance(given, str) and json_list(given) is None:
            given = [given]
        items = _items(given)
        if items is None:
            raise self._bad_cell(described(given))
        found = [_of(item, "question", "query") if isinstance(item, dict) else item for item in items]
        for question in found:
            if not isinstance(question, str):
                raise self._bad_cell(described(question))
            if not question.strip():
                raise BadCell("an empty question")
        return found

    def is_missing(self, value: Any) -> bool:
        return not value


@dataclass(frozen=True)
class Evidence(_Alternatives):
    """For each question, the numbers of the parts that answer it, counted from 0, or QMSum's spans of such."""

    target: bool = field(default=True, kw_only=True)
    kind = "a list of the numbers of parts"

    @property
    def feature(self) -> Any:
        from datasets import List, Value

        return List(List(Value("int32")))

    def parse(self, cell: Any, folder: Path) -> list[list[int]] | None:
        own, *several = cell
        if own is not None:
            return [self._numbers(own)]
        given = _first(several)
        if given is None:
            return None
        found: list[list[int]] = []
        for item in _items(given) or []:
            spans = _of(item, "relevant_text_span") if isinstance(item, dict) else None
            named = _of(item, "evidence") if isinstance(item, dict) else None
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
        items = _items(cell)
        if items is None:
            raise self._bad_cell(described(cell))
        return sorted({self._number(item) for item in items})

    def _in_spans(self, spans: Any) -> list[int]:
        found: set[int] = set()
        for span in _items(spans) or []:
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


def _first(cells: Sequence[Any]) -> Any:
    return next((cell for cell in cells if cell is not None), None)


def _items(cell: Any) -> list[Any] | None:
    """Return a list, given as such or as JSON text; None for anything else."""
    if isinstance(cell, str):
        return json_list(cell)
    return cell if isinstance(cell, list) else None


def _of(item: Mapping[str, Any], *names: str) -> Any:
    return _first([item.get(name) for name in names])
