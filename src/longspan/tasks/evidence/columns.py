"""What is read: documents in parts, their questions, and the parts that answer each.

Tables have `parts`, and either `question` with `evidence` or, so that a document with several questions is there once,
`questions`, a list of {"question": ..., "evidence": [...]}. The files of QMSum (Zhong et al. 2021,
https://aclanthology.org/2021.naacl-main.472) have the same under names of their own.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan.data.columns.parts import Alternatives, first, items_of, under
from longspan.data.columns.values import BadCell, described


@dataclass(frozen=True)
class Evidence(Alternatives):
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
