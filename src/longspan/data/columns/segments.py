"""Columns of recordings with labelled segments: `WholeRecording` and `Segments`.

A table has either a list of segments per recording, or a row per segment, with the path of its recording.
"""

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from longspan.data.columns.kinds import Column
from longspan.data.columns.literals import list_in
from longspan.data.columns.media import Recording
from longspan.data.columns.values import BadCell, WrongColumn, composed, described, label_text, number

_KEYS = ("start", "end", "label")
#: Seconds by which segments may overlap: ends and starts are often rounded.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class WholeRecording(Recording):
    """A recording whose table has no start and end of it, as columns of these names are those of its segments.

    An object in its place may have them, as those of any `Recording`.
    """

    def sources(self, name: str) -> Sequence[str]:
        return (name,)

    def cell(self, cells: Sequence[Any]) -> Any:
        return super().cell([cells[0], None, None])


@dataclass(frozen=True)
class Segments(Column):
    """Segments of a recording, each with its label: {"start": [...], "end": [...], "label": [...]}, seconds in order.

    A cell is a list of {"start", "end", "label"}, or such a list as JSON text. A table may instead have a row for each
    segment, with columns for the three; `merged` puts those of one recording together. Segments do not overlap.

    Attributes:
        start: The column with the start of a row's segment, in seconds.
        end: The column with its end.
        label: The column with its label.
    """

    target: bool = field(default=True, kw_only=True)
    start: str = field(default="start", kw_only=True)
    end: str = field(default="end", kw_only=True)
    label: str = field(default="label", kw_only=True)
    kind = 'a list of segments such as {"start": 0.5, "end": 1.2, "label": "..."}'
    dtype: ClassVar[Any] = {"start": ["float64"], "end": ["float64"], "label": ["string"]}
    #: The list is its own source, and the columns of a row per segment the others.
    alternative: ClassVar[bool] = True
    merges: ClassVar[bool] = True

    def sources(self, name: str) -> Sequence[str]:
        return name, self.start, self.end, self.label

    def absent(self, name: str, present: Collection[str]) -> list[str]:
        each = [self.start, self.end, self.label]
        if not self.required or name in present:
            return []
        missing = [one for one in each if one not in present]
        return [name] if len(missing) == len(each) else missing

    def cell(self, cells: Sequence[Any]) -> Any:
        return list(cells)

    def parse(self, cell: Any, folder: Path) -> dict[str, list[Any]] | None:
        own, *each = cell
        if own is None or own == "":
            if all(_is_blank(value) for value in each):
                return None
            return self._of([dict(zip(_KEYS, each, strict=True))])
        items = list_in(own) if isinstance(own, str) else own
        if isinstance(own, str) and items is None:
            raise self._bad_cell(described(own))
        if not isinstance(items, list):
            raise WrongColumn
        return self._of(items)

    def merged(self, values: Sequence[dict[str, list[Any]]]) -> dict[str, list[Any]]:
        """Return the segments of one recording, from several rows, in order. Raises BadCell if they overlap."""
        rows = sorted(row for one in values for row in zip(one["start"], one["end"], one["label"], strict=True))
        for before, after in itertools.pairwise(rows):
            if after[0] < before[1] - _ROUNDING:
                raise BadCell(
                    "overlapping segments",
                    f"{before[0]:g} to {before[1]:g} s and {after[0]:g} to {after[1]:g} s",
                )
        return {key: [row[place] for row in rows] for place, key in enumerate(_KEYS)}

    def _of(self, items: Sequence[Any]) -> dict[str, list[Any]]:
        found: dict[str, list[Any]] = {key: [] for key in _KEYS}
        for item in items:
            if not isinstance(item, Mapping):
                raise self._bad_cell(f"{described(item)} among them")
            start, end = (self._seconds(item.get(key), key) for key in ("start", "end"))
            label = label_text(item.get("label"))
            if label is None:
                raise self._bad_cell("a segment without a label")
            if start < 0 or end <= start:
                raise self._bad_cell(f"one from {start:g} to {end:g} s")
            for key, value in zip(_KEYS, (start, end, composed(label)), strict=True):
                found[key].append(value)
        return self.merged([found])

    def _seconds(self, value: Any, key: str) -> float:
        if _is_blank(value):
            raise self._bad_cell(f"a segment without {'a start' if key == 'start' else 'an end'}")
        return number(value, self._bad_cell)


def _is_blank(value: Any) -> bool:
    return value is None or (isinstance(value, str) and not value.strip())
