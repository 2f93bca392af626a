"""Names of files and their rows in messages: `named` and `row_of`."""

from pathlib import Path

from longspan.machine.printing import printable

IN_MEMORY = "longspan_in_memory"
"""The folder, in the cache of data sets, with copies of data that are in memory: each in a folder of its own."""


def named(path: Path | str) -> str:
    """Name of a file in messages, or "the DataFrame" for a copy of one."""
    path = Path(path)
    return f"the {path.stem}" if is_copy(path) else printable(path.name)


def row_of(path: Path | str, number: int) -> str:
    """Return the address of a row, such as "reviews.csv, row 17" or "row 17 of the DataFrame"."""
    name = named(path)
    return f"row {number} of {name}" if is_copy(path) else f"{name}, row {number}"


def is_copy(path: Path | str) -> bool:
    """Return whether a file is a copy of data that are, or were, in memory."""
    return Path(path).parent.parent.name == IN_MEMORY
