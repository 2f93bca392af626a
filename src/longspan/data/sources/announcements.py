"""Notices of reading on standard error, each once, such as encodings found and files that are no documents."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from longspan.data.sources.files.documents import INSTALL, lacks_package
from longspan.data.sources.formats.schema import Row
from longspan.machine.printing import note, printable


def note_encodings(found: Mapping[str, int], total: int) -> None:
    """Say how many documents, of `total`, were in other encodings than UTF-8; nothing if there were none."""
    if found:
        number = sum(found.values())
        verb = "is" if number == 1 else "are"
        note(f"{number:,} of {total:,} documents {verb} not in UTF-8: {_counts(found)}")


def note_left_out(suffixes: Mapping[str, int], remarks: Iterable[str] = ()) -> None:
    """Say how many files of folders were not read, by suffix, and what else was not; nothing if there was none."""
    for remark in remarks:
        note(remark)
    lacking = {suffix: count for suffix, count in suffixes.items() if lacks_package(suffix)}
    others = {suffix: count for suffix, count in suffixes.items() if suffix not in lacking}
    if lacking:
        note(f"not read: {_files(lacking)} ({INSTALL} reads them)")
    if others:
        note(f"not read: {_files(others)} (not in a format that is read as text)")


def noting_encodings(rows: Iterator[Row]) -> Iterator[Row]:
    """Yield the rows and say at the end which encodings were found."""
    total = 0
    found: Counter[str] = Counter()
    for row in rows:
        total += 1
        found.update([row.encoding] if row.encoding else [])
        yield row
    note_encodings(found, total)


def _files(numbers: Mapping[str, int]) -> str:
    return f"{_counts(numbers)} {'file' if sum(numbers.values()) == 1 else 'files'}"


def _counts(numbers: Mapping[str, int]) -> str:
    largest = sorted(numbers, key=lambda name: (-numbers[name], name))
    return ", ".join(f"{numbers[name]:,} {printable(name)}" for name in largest)
