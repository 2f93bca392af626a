"""Retrieval: do two texts belong together? Each is read byte by byte, by itself.

Source: Tay et al. 2021 (https://arxiv.org/abs/2011.04006), with pairs of papers, one of which may cite the other (AAN,
Radev et al. 2013). These are read where the user has them. From books, pairs of excerpts are made instead: are both
from the same book? That is another task, whose scores say nothing about the paper's.
"""

import csv
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from longspan.challenges.base import Challenge, Data, Row, asked, stream
from longspan.challenges.classes import text_of
from longspan.errors import UserError

BYTES = 4_000
#: Pairs of excerpts of books.
SIZES = {"train": 20_000, "validation": 2_000, "test": 2_000}
_FOLDERS = {"train": ("train",), "validation": ("valid", "validation", "val", "dev"), "test": ("test",)}
_PAPERS = {split: f"new_aan_pairs.{name}.tsv" for split, name in zip(SIZES, ("train", "eval", "test"), strict=True)}
_KINDS = (".txt", ".md")


class Retrieval(Challenge):
    """Pairs of texts."""

    name = "retrieval"
    description = "Whether two texts belong together, each read byte by byte (2 classes)."
    needs = "a folder of books, with text files in train/, valid/ and test/, or one with new_aan_pairs.train.tsv, ..."
    length = BYTES
    recipe = "arena-pairs"
    settings = ("data.tokens=bytes", f"data.max_length={BYTES}")
    column = "first"

    def open(self, given: Path | None, seed: int, sizes: Mapping[str, int]) -> Data:
        assert given is not None
        if (given / _PAPERS["train"]).is_file():
            return _Papers(given, sizes)
        return _Books(given, seed, {**SIZES, **sizes})


class _Papers(Data):
    """The paper's own pairs."""

    def __init__(self, given: Path, sizes: Mapping[str, int]) -> None:
        self._given, self._sizes = given, sizes
        for name in _PAPERS.values():
            if not (given / name).is_file():
                raise UserError(f"expected {name} in {str(given)!r}, got no such file; add it.")

    def size(self, split: str) -> int | None:
        return self._sizes.get(split)

    def rows(self, split: str) -> Iterator[Row]:
        path, wanted = self._given / _PAPERS[split], self._sizes.get(split, sys.maxsize)
        number = 0
        before = csv.field_size_limit(2**31 - 1)
        try:
            with path.open(encoding="utf-8", newline="") as file:
                for number, fields in enumerate(csv.reader(file, delimiter="\t"), 1):
                    if number > wanted:
                        return
                    if len(fields) != 5 or fields[0] not in ("0", "1", "0.0", "1.0"):
                        raise UserError(
                            f"expected a label of 0 or 1, two names and two texts in row {number:,} of {str(path)!r}, "
                            f"got {len(fields)} fields; restore the file."
                        )
                    yield {"first": fields[3], "second": fields[4], "label": fields[0][0]}
        finally:
            csv.field_size_limit(before)
        asked(self._sizes, split, number)

    def facts(self) -> dict[str, Any]:
        return {"made of": "the pairs of papers of the Long Range Arena (AAN)"}


class _Books(Data):
    """Pairs of excerpts: of one book, or of two, if possible of two authors."""

    def __init__(self, given: Path, seed: int, sizes: Mapping[str, int]) -> None:
        self._seed, self._sizes = seed, sizes
        self._files = {split: _books(given, names) for split, names in _FOLDERS.items()}

    def size(self, split: str) -> int:
        return self._sizes[split]

    def rows(self, split: str) -> Iterator[Row]:
        books = [(path.parent, _excerpts(text_of(path))) for path in self._files[split]]
        books = [(author, parts) for author, parts in books if len(parts) > 1]
        if len(books) < 2:
            raise UserError(
                f"expected at least two books of more than {2 * BYTES:,} bytes for the {split} split, got "
                f"{len(books)}; add some."
            )
        source = stream(self._seed, Retrieval.name, split)
        labels = [number % 2 for number in range(self._sizes[split])]
        source.shuffle(labels)
        for label in labels:
            author, parts = source.choice(books)
            if label:
                first, second = source.sample(parts, 2)
            else:
                others = [other for other in books if other[0] != author] or [
                    one for one in books if one[1] is not parts
                ]
                first, second = source.choice(parts), source.choice(source.choice(others)[1])
            yield {"first": first, "second": second, "label": str(label)}

    def facts(self) -> dict[str, Any]:
        return {
            "made of": "pairs of excerpts of books",
            "books": {split: len(files) for split, files in self._files.items()},
        }


def _books(given: Path, names: tuple[str, ...]) -> list[Path]:
    """Return the books of a split, sorted: files in the first of these folders, or in its sub-folders."""
    for name in names:
        found = sorted(path for path in (given / name).rglob("*") if path.suffix.lower() in _KINDS and path.is_file())
        if found:
            return found
    raise UserError(
        f"expected a folder {names[0]} with text files in {str(given)!r}, got none; name a folder with train/, valid/ "
        f"and test/, or one with {_PAPERS['train']}."
    )


def _excerpts(text: str) -> list[str]:
    """Return a text in parts of at most `BYTES` bytes, cut at white space where there is some."""
    content, parts, start = text.encode(), list[str](), 0
    while len(content) - start >= BYTES:
        end = start + BYTES
        cut = max(content.rfind(space, start, end) for space in (b" ", b"\n"))
        if cut <= start:
            # Not within a character.
            cut = end
            while content[cut] & 0xC0 == 0x80:
                cut -= 1
        parts.append(content[start:cut].decode())
        start = cut
    return parts
