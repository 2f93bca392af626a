"""Long documents in parts, and questions about them: columns that a table may have under any one of several names.

Parts are a list of texts, or of {"speaker": ..., "content": ...} as in the files of QMSum (Zhong et al. 2021,
https://aclanthology.org/2021.naacl-main.472). `TURNS`, `GENERAL` and `SPECIFIC` are its names of parts and questions.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from longspan.data.columns.kinds import Column, Text
from longspan.data.columns.literals import list_in
from longspan.data.columns.values import BadCell, WrongColumn, described

TURNS, GENERAL, SPECIFIC = "meeting_transcripts", "general_query_list", "specific_query_list"


@dataclass(frozen=True)
class Alternatives(Column):
    """A column that a table may have under any one of several names.

    Attributes:
        names: The names in the source.
    """

    names: tuple[str, ...] = field(default=(), kw_only=True)
    shares: ClassVar[bool] = True
    alternative: ClassVar[bool] = True

    def sources(self, name: str) -> Sequence[str]:
        return self.names

    def absent(self, name: str, present: Collection[str]) -> list[str]:
        return [] if not self.required or any(name in present for name in self.names) else [self.names[0]]

    def cell(self, cells: Sequence[Any]) -> Any:
        return list(cells)

    def _texts(self, given: Any, *keys: str) -> list[str]:
        """Texts of a list, of an object the one under the first key that it has; the first key is what each is."""
        items = items_of(given)
        if items is None:
            raise self._bad_cell(described(given))
        found = [under(item, *keys) if isinstance(item, dict) else item for item in items]
        for text in found:
            if not isinstance(text, str):
                raise self._bad_cell(described(text))
            if not text.strip():
                raise BadCell(f"an empty {keys[0]}")
        return found

    def _part_text(self, item: Any) -> str:
        """Return the text of a part, "speaker: content" if it names its speaker."""
        if isinstance(item, str):
            return item
        if isinstance(item, dict) and isinstance(item.get("content"), str):
            speaker = item.get("speaker")
            return f"{speaker}: {item['content']}" if isinstance(speaker, str) and speaker else str(item["content"])
        raise self._bad_cell(f"{described(item)} among its items")


@dataclass(frozen=True)
class Parts(Alternatives):
    """The parts of a document: a list of texts, or of {"speaker": ..., "content": ...}, then "speaker: content"."""

    kind = "a list of texts"
    dtype: ClassVar[Any] = ["large_string"]

    def parse(self, cell: Any, folder: Path) -> list[str] | None:
        given = first(cell)
        if given is None:
            return None
        items = items_of(given)
        if items is None:
            raise self._bad_cell(described(given))
        parts = [self._part_text(item) for item in items]
        empty = next((number for number, part in enumerate(parts) if not part.strip()), None)
        if empty is not None:
            raise BadCell("an empty part", f"number {empty} of {len(parts)}, counted from 0")
        if not parts:
            raise BadCell("an empty document")
        return parts


@dataclass(frozen=True)
class Questions(Alternatives):
    """The questions about a document: one text, or a list of texts or of objects with a "question"."""

    kind = "a question"
    dtype: ClassVar[Any] = ["large_string"]
    #: Several questions are about one document.
    identifies = False

    def parse(self, cell: Any, folder: Path) -> list[str] | None:
        given = first(cell)
        if given is None:
            return None
        alone = isinstance(given, str) and list_in(given) is None
        return self._texts([given] if alone else given, "question", "query")

    def is_missing(self, value: Any) -> bool:
        return not value


@dataclass(frozen=True)
class Document(Alternatives, Text):
    """A document under any one of several names: text, or its parts as for `Parts`, each of which becomes a line."""

    def parse(self, cell: Any, folder: Path) -> str:
        given = first(cell)
        if given is None or isinstance(given, str):
            return given or ""
        if not isinstance(given, list):
            raise WrongColumn
        return "\n".join(" ".join(self._part_text(item).split()) for item in given)


def first(cells: Sequence[Any]) -> Any:
    """Return the first cell that is not None."""
    return next((cell for cell in cells if cell is not None), None)


def items_of(cell: Any) -> list[Any] | None:
    """Return a list, given as such or as JSON text; None for anything else."""
    if isinstance(cell, str):
        return list_in(cell)
    return cell if isinstance(cell, list) else None


def under(item: Mapping[str, Any], *names: str) -> Any:
    """The value under the first of some names that is there."""
    return first([item.get(name) for name in names])
