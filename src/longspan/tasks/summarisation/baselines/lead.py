"""The beginning and the end of a document: `Lead`."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from longspan.tasks.summarisation.baselines._extraction import Extraction, Setting
from longspan.tasks.summarisation.reading import UNITS, fill, units


class Lead(Extraction):
    """The first and the last lines or sentences of a document.

    The validation split chooses which of the two, and the share of the words that is from the beginning.
    """

    settings = tuple({"parts": kind, "first": share} for kind in UNITS for share in (1.0, 0.5, 0.0))

    def summaries(self, row: Mapping[str, Any], words: int, settings: Sequence[Setting]) -> Iterator[list[str]]:
        for setting in settings:
            parts = units(row["document"], setting["parts"])
            size = round(setting["first"] * words)
            beginning = fill(parts, range(len(parts)), size)
            rest = range(len(parts) - 1, len(beginning) - 1, -1)
            summary = "\n".join([*beginning, *fill(parts, rest, words - size)])
            yield [summary] * len(row["questions"] or [""])
