"""Columns of questions about documents: spans with the answers, flags for unanswerable questions, row identifiers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from longspan.data.columns.kinds import Column
from longspan.data.columns.literals import literal
from longspan.data.columns.values import WrongColumn, described, flag, label_text

_NOT_THERE = "answer not at its place"


@dataclass(frozen=True)
class Spans(Column):
    """Stretches of another column's text, each as its text and the character that it starts at.

    A cell is {"text": [...], "answer_start": [...]}, as in data sets of the Hub, a list of {"text": ...,
    "answer_start": ...}, as in SQuAD's files, or either as JSON text. An empty list means no answer. The value is
    {"text": [...], "start": [...]}.

    Attributes:
        of: The name of the `Text` column that they are stretches of.
        none: The name of a `Truth` column that says of a row that it has none.
    """

    target: bool = field(default=True, kw_only=True)
    of: str = field(default="text", kw_only=True)
    none: str = field(default="", kw_only=True)
    kind = 'answers such as {"text": ["..."], "answer_start": [0]}'
    dtype: ClassVar[Any] = {"text": ["large_string"], "start": ["int64"]}

    def parse(self, cell: Any, folder: Any) -> dict[str, list[Any]]:
        if isinstance(cell, str):
            found = literal(cell)
            if not isinstance(found, dict | list):
                raise self._bad_cell(described(cell))
            cell = found
        if isinstance(cell, list):
            cell = {key: [self._part(item, key) for item in cell] for key in ("text", "answer_start")}
        if not isinstance(cell, dict):
            raise WrongColumn
        texts, starts = self._part(cell, "text"), self._part(cell, "answer_start")
        if not isinstance(texts, list) or not isinstance(starts, list) or len(texts) != len(starts):
            raise self._bad_cell("texts and starts that differ in number")
        for text, start in zip(texts, starts, strict=True):
            if not isinstance(text, str) or not text.strip():
                raise self._bad_cell("an answer without text")
            if isinstance(start, bool) or not isinstance(start, int) or not 0 <= start < 1 << 62:
                raise self._bad_cell(f"{described(start)} as the character where an answer starts")
        return {"text": texts, "start": starts}

    def _part(self, item: Any, key: str) -> Any:
        if not isinstance(item, dict) or key not in item:
            found = described(item) if not isinstance(item, dict) else f"some without {key!r}"
            raise self._bad_cell(found)
        return item[key]

    def check(self, values: Mapping[str, Any]) -> str:
        spans, whole = values[self.name], values[self.of]
        if not spans or whole is None:
            return ""
        if spans["text"] and values.get(self.none):
            return f"answers to a question that has none ({len(spans['text'])} of them)"
        for text, start in zip(spans["text"], spans["start"], strict=True):
            if not whole.startswith(text, start):
                places = " and ".join(map(str, _occurrences(whole, text, 3)))
                instead = f"it begins at {places}" if places else "the document does not have it"
                return (
                    f"{_NOT_THERE} (expected its {len(text)} characters at character {start} of the {self.of}, but "
                    f"{instead})"
                )
        return ""


def _occurrences(whole: str, text: str, most: int) -> list[int]:
    """Return the first places where a text occurs, at most `most`."""
    found: list[int] = []
    place = whole.find(text)
    while place >= 0 and len(found) < most:
        found.append(place)
        place = whole.find(text, place + 1)
    return found


@dataclass(frozen=True)
class Truth(Column):
    """Whether something is so: true or false, 1 or 0."""

    kind = "true or false"
    dtype = "bool"

    def parse(self, cell: Any, folder: Any) -> bool | None:
        if cell != cell:
            # NaN is an empty cell of a table.
            return None
        found = flag(cell)
        if found is None:
            raise self._bad_cell(described(cell))
        return found


@dataclass(frozen=True)
class Identifier(Column):
    """Identifier of a row: text, or a number, which becomes text."""

    kind = "a name or a number"
    dtype = "string"
    identifies = False

    def parse(self, cell: Any, folder: Any) -> str | None:
        return label_text(cell)
