"""The table of a training run on standard error: one row for each validation."""

import shutil
from collections.abc import Mapping, Sequence
from typing import TextIO

NEWEST = 10
"""How many of the newest rows a terminal shows; the best of the older ones stays above them."""
_ERASE = "\x1b[{}A\x1b[J"


class EpochTable:
    """Rows of numbers under one header; a star is before each row that was the best so far.

    A terminal shows the best and the newest rows. Once there are more than `NEWEST`, the table is drawn again in its
    place, without the columns that do not fit. Elsewhere, such as in a log file, each row is one line and stays.

    Args:
        columns: names of the columns, by their keys in the rows; the first is the epoch.
        best: the key of the column that tells which row is best.
        higher_is_better: whether higher is better there.
        out: where it is written.
    """

    def __init__(self, columns: Mapping[str, str], best: str, higher_is_better: bool, out: TextIO) -> None:
        self.columns, self.best, self.higher_is_better, self.out = dict(columns), best, higher_is_better, out
        self.widths = {key: max(len(name), 8) for key, name in columns.items()}
        self._rows: list[list[str]] = []
        self._record: float | None = None
        self._record_row = -1
        self._drawn = 0
        self._terminal = (0, 0)

    def improves(self, row: Mapping[str, float]) -> bool:
        """Take note of a row that is not shown, such as one before a run was resumed; return whether it is the best."""
        value = row.get(self.best)
        if value is None or value != value:
            return False
        better = self._record is None or (value > self._record if self.higher_is_better else value < self._record)
        if better:
            self._record = value
        return better

    def add(self, row: Mapping[str, float]) -> None:
        """Show a row with values by column; columns without one show a dash."""
        best = self.improves(row)
        cells = [_cell(key, row.get(key)).rjust(width) for key, width in self.widths.items()]
        self._rows.append(["*" if best else " ", *cells])
        if best:
            self._record_row = len(self._rows) - 1
        if not self.out.isatty():
            self._write([*([] if self._drawn else self._header()), self._rows[-1]], None)
            self._drawn += 1
            return
        size = shutil.get_terminal_size()
        shown = self._shown()
        if not self._drawn or size != self._terminal:
            # Lines that were drawn for another size are no longer where they were.
            lines, self._drawn = [*self._header(), *shown], 0
        elif len(self._rows) <= NEWEST:
            lines = self._rows[-1:]
        else:
            self.out.write(_ERASE.format(self._drawn))
            lines, self._drawn = [*self._header(), *shown], 0
        self._terminal = (size.columns, size.lines)
        self._write(lines, size.columns)
        self._drawn += len(lines)

    def _shown(self) -> list[list[str]]:
        first = max(0, len(self._rows) - NEWEST)
        above = [self._rows[self._record_row]] if 0 <= self._record_row < first else []
        if first:
            above.append([" ", "...".rjust(self.widths["epoch"])])
        return [*above, *self._rows[first:]]

    def _header(self) -> list[list[str]]:
        names = [name.rjust(self.widths[key]) for key, name in self.columns.items()]
        return [[" ", *names], [" ", *("-" * width for width in self.widths.values())]]

    def _write(self, lines: Sequence[Sequence[str]], width: int | None) -> None:
        fitting, taken = 1, 1
        for column in self.widths.values():
            # A line that wraps would be two, and a number cut off another number.
            taken += 2 + column
            fitting += width is None or taken < width
        self.out.write("".join(f"{'  '.join(line[:fitting]).rstrip()}\n" for line in lines))
        self.out.flush()


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if key == "epoch" else f"{value:.4f}" if abs(value) < 1e4 else f"{value:.4g}"
