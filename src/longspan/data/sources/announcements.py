"""Notices of reading on standard error, each once, such as encodings found and files that are no documents."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from longspan.data.sources.formats.schema import Row
from longspan.machine.printing import note, printable


def note_encodings(found: Mapping[str, int], total: int) -> None:
    """Say how many documents, of `total`, were in other encodings than UTF-8; nothing if there were none."""
    if found:
        number = sum(found.values())
        verb = "is" if number == 1 else "are"
        note(f"{number:,} of {total:,} documents {verb} not in UTF-8: {_counts(found)}")


def note_left_out(suffixes: Mapping[str, int], remarks: Iterable[str] = ()) -> None:
    """Say how many files of folders were left out, by suffix, and what else was; nothing if there was none."""
    for remark in remarks:
        note(remark)
    if suffixes:
        number = sum(suffixes.values())
        what = "1 file that is no document" if number == 1 else f"{number:,} files that are no documents"
        note(f"left out {what}: {_counts(suffixes)}")


def noting_encodings(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows and say at the end which encodings were found."""
    total = 0
    found: Counter[str] = Counter()
    for row in rows:
        total += 1
        found.update([row.encoding] if row.encoding else [])
        yield row
    note_encodings(found, total)


def _counts(numbers: Mapping[str, int]) -> str:
    largest = sorted(numbers, key=lambda name: (-numbers[name], name))
    return ", ".join(f"{numbers[name]:,} {printable(name)}" for name in largest)
