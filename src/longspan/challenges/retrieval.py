"""Retrieval: whether two documents belong together, each read byte by byte.

Source: Tay et al. 2021 (https://arxiv.org/abs/2011.04006). There are two kinds of data:

- The Arena's own files, `new_aan_pairs.train.tsv`, `new_aan_pairs.eval.tsv` and `new_aan_pairs.test.tsv`. The texts are
  papers of the ACL Anthology Network. The label is "1" if one paper cites the other. A file has five columns and no
  header: label, two identifiers, two texts. The Arena publishes only labels and identifiers, so a user has to add the
  texts.
- A folder of books. The texts are excerpts, and the label is "1" if both come from the same book. This is another task
  of the same form and length.

An excerpt has at most 4,000 bytes, and begins and ends between words. Two excerpts of one book do not overlap. Two
books have different authors, where the folder says who they are. Each split has its own books, and as many positive as
negative pairs. Line breaks are the same in all books, as they would tell books apart.
"""

import random
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from longspan.challenges.base import SPLITS, Challenge, Data, Drawn, Row, examples_to_write, stream
from longspan.challenges.texts import read_text
from longspan.data.sources.files.opening import examine, open_packed
from longspan.data.sources.formats.folders import Listed, document_file, is_text, list_files, list_splits
from longspan.errors import UserError

EXCERPT = 4_000
"""Bytes of the longest excerpt."""
SIZES = {"train": 20_000, "validation": 2_000, "test": 2_000}
SHORTEST = 3 * EXCERPT
"""Bytes of the shortest book that is used."""
PAPERS = {split: f"new_aan_pairs.{part}.tsv" for split, part in zip(SPLITS, ("train", "eval", "test"), strict=True)}
"""The Arena's file of each split."""
_LABELS = {"0": "0", "0.0": "0", "1": "1", "1.0": "1"}
_SPACE = re.compile(rb"\s+")
# Bytes of the longest word that is not cut.
_WORD = 100


class Retrieval(Challenge):
    """Pairs of papers, or of excerpts of books."""

    name = "retrieval"
    description = "Whether two documents, read byte by byte, belong together: pairs of papers or of excerpts of books."
    needs = (
        "a folder with train/, valid/ and test/ of books as text or Markdown files, or the Arena's files "
        "new_aan_pairs.*.tsv"
    )
    length = EXCERPT
    recipe = "arena-pairs"
    settings = ("data.tokens=bytes", f"data.max_length={EXCERPT}")
    column = "first"

    def open(self, given: Path | None, seed: int, sizes: Mapping[str, int]) -> Data:
        assert given is not None
        examine(given)
        folder = given if given.is_dir() else given.parent
        if given.name in PAPERS.values() or any((folder / name).exists() for name in PAPERS.values()):
            return _Papers(folder, sizes)
        if not given.is_dir():
            raise UserError(f"expected {self.needs} at {str(given)!r}, got another file; name a folder.")
        return _Excerpts(self, given, seed, {**SIZES, **sizes})


class _Papers(Data):
    """The pairs of the Arena's files, in their order."""

    def __init__(self, folder: Path, sizes: Mapping[str, int]) -> None:
        absent = [name for name in PAPERS.values() if not (folder / name).exists()]
        if absent:
            raise UserError(
                f"expected {', '.join(PAPERS.values())} in {str(folder)!r}, got no {absent[0]}; add the file."
            )
        self._folder, self._sizes = folder, sizes

    def size(self, split: str) -> int | None:
        return self._sizes.get(split)

    def rows(self, split: str) -> Iterator[Row]:
        name, number, size = PAPERS[split], 0, self._sizes.get(split)
        with open_packed(self._folder / name) as file:
            for line in file:
                if number == size:
                    return
                number += 1
                # Texts that were extracted from PDF files may have broken bytes.
                fields = line.decode("utf-8", "replace").rstrip("\r\n").split("\t")
                if len(fields) != 5 or fields[0] not in _LABELS:
                    raise UserError(
                        f"expected label (0 or 1), two identifiers and two texts in {name}, line {number}, separated "
                        f"by tabs, got {len(fields)} fields that begin with {fields[0][:20]!r}; restore the file."
                    )
                yield {"first": fields[3], "second": fields[4], "label": _LABELS[fields[0]]}
        examples_to_write(self._sizes, split, number)
        if not number:
            raise UserError(f"expected pairs in {name}, got an empty file; restore it.")

    def facts(self) -> dict[str, Any]:
        return {"pairs": "papers of the ACL Anthology Network, as in the Long Range Arena"}


class _Book(NamedTuple):
    author: str
    content: bytes


class _Excerpts(Drawn):
    """Pairs of excerpts of books."""

    def __init__(self, challenge: Challenge, given: Path, seed: int, sizes: Mapping[str, int]) -> None:
        listed = list_splits(list_files(given))
        self._files = {split: list(filter(is_text, listed.get(split, []))) for split in SPLITS}
        if empty := [split for split in SPLITS if not self._files[split]]:
            raise UserError(
                f"expected {challenge.needs} at {str(given)!r}, got no books for {empty[0]}; name another folder, or "
                "sort the books into such folders."
            )
        super().__init__(seed, sizes)
        self._used, self._short = dict[str, int](), dict[str, int]()

    def rows(self, split: str) -> Iterator[Row]:
        books = [_read_book(file) for file in self._files[split]]
        usable = [book for book in books if len(book.content) >= SHORTEST]
        self._used[split], self._short[split] = len(usable), len(books) - len(usable)
        if len(usable) < 2:
            raise UserError(
                f"expected at least 2 books of {SHORTEST:,} bytes or more for {split}, got {len(usable)}; add more."
            )
        source, others = stream(self.seed, Retrieval.name, split), _other_books(usable)
        labels = [number % 2 for number in range(self.sizes[split])]
        source.shuffle(labels)
        for label in labels:
            number = source.randrange(len(usable))
            one = usable[number].content
            if label:
                pair = _two_excerpts(one, source)
            else:
                other = usable[source.choice(others[number])].content
                pair = [excerpt(each, source.randrange(len(each) - EXCERPT + 1)) for each in (one, other)]
            source.shuffle(pair)
            yield {"first": pair[0], "second": pair[1], "label": str(label)}

    def facts(self) -> dict[str, Any]:
        return {"pairs": "pairs of excerpts of books", "books": self._used, "books_too_short": self._short}


def _read_book(file: Listed) -> _Book:
    # The folder of a book, within that of its split, is named after the author.
    author = file.where.partition("/")[2].rpartition("/")[0]
    return _Book(author, read_text(document_file(*file)).replace("\r\n", "\n").encode())


def _other_books(books: Sequence[_Book]) -> list[list[int]]:
    """Return the numbers of the other books for each book: of those by other authors, if there are any."""
    found = []
    for number, book in enumerate(books):
        rest = [other for other in range(len(books)) if other != number]
        found.append([other for other in rest if books[other].author != book.author] or rest)
    return found


def _two_excerpts(content: bytes, source: random.Random) -> list[str]:
    """Return two excerpts that do not overlap, from random places."""
    free = len(content) - 2 * EXCERPT
    before, after = sorted((source.randint(0, free), source.randint(0, free)))
    return [excerpt(content, before), excerpt(content, after + EXCERPT)]


def excerpt(content: bytes, begin: int) -> str:
    """Return the whole words among the `EXCERPT` bytes from `begin`; words that are too long are cut anywhere.

    Args:
        content: A text in UTF-8.
        begin: Where the excerpt may begin.
    """
    end = min(begin + EXCERPT, len(content))
    # A word that the edge cuts is left out, up to the white space next to it.
    if begin and (space := _SPACE.search(content, begin - 1, begin + _WORD)):
        begin = space.end()
    if end < len(content) and (spaces := [found.start() for found in _SPACE.finditer(content, end - _WORD, end + 1)]):
        end = spaces[-1]
    return content[begin:end].decode("utf-8", "ignore").strip()
