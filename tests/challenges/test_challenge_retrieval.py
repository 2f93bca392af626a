"""Retrieval: pairs of excerpts of books, and the pairs of the Arena."""

import random
from collections import Counter
from pathlib import Path

import pytest
from challenge_files import about, written

from longspan.challenges.base import SPLITS
from longspan.challenges.retrieval import EXCERPT, PAPERS, excerpt
from longspan.errors import UserError

BOOKS = {"train": 4, "valid": 2, "test": 3}
WORDS = 3_000


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """Books whose words say where they are: author, book and number of the word."""
    root = tmp_path / "books"
    for part, number in BOOKS.items():
        for each in range(number):
            # The first two of each part are by one author, if there are others.
            author = f"{part}{max(each, 1) if number > 2 else each}"
            folder = root / part / author
            folder.mkdir(parents=True, exist_ok=True)
            end = "\r\n" if each % 2 else "\n"
            text = "".join(f"é{author}:{each}:{word:04}{' ' if word % 9 else end}" for word in range(WORDS))
            (folder / f"book{each}.md").write_bytes(text.encode())
    return root


def places(text: str) -> tuple[str, str, list[int]]:
    """Return author, book, and the numbers of all words of an excerpt, which must be whole and in order."""
    words = [word.split(":") for word in text.split()]
    assert all(len(word) == 3 and word[0].startswith("é") and len(word[2]) == 4 for word in words)
    (author,) = {word[0][1:] for word in words}
    (book,) = {word[1] for word in words}
    numbers = [int(word[2]) for word in words]
    assert numbers == [*range(numbers[0], numbers[-1] + 1)]
    return author, book, numbers


def test_pairs_are_excerpts_of_one_book_or_of_books_of_two_authors(books: Path, tmp_path: Path) -> None:
    rows = written("retrieval", tmp_path / "out", books, train=200, validation=20, test=21)
    parts = dict(zip(SPLITS, BOOKS, strict=True))
    for split in SPLITS:
        labels = Counter(row["label"] for row in rows[split])
        assert labels["1"] == len(rows[split]) // 2
        for row in rows[split]:
            assert list(row) == ["first", "second", "label"]
            for text in (row["first"], row["second"]):
                assert EXCERPT - 220 < len(text.encode()) <= EXCERPT
                assert "\r" not in text
            first, second = places(row["first"]), places(row["second"])
            assert first[0].startswith(parts[split])
            assert second[0].startswith(parts[split])
            if row["label"] == "1":
                assert first[:2] == second[:2]
                assert not {*first[2]} & {*second[2]}
            else:
                assert first[0] != second[0]
    # Books, and places in them, are of all kinds: before and after, in both labels.
    positive = [row for row in rows["train"] if row["label"] == "1"]
    before = sum(places(row["first"])[2] < places(row["second"])[2] for row in positive)
    assert 25 < before < 75
    assert len({places(row["first"])[:2] for row in positive}) == BOOKS["train"]
    found = about(tmp_path / "out")
    assert found["pairs"] == "pairs of excerpts of books"
    assert found["books"] == {"train": 4, "validation": 2, "test": 3}


def test_books_of_one_author_are_paired_if_there_is_no_other(books: Path, tmp_path: Path) -> None:
    for name in ("valid0/book0.md", "valid1/book1.md"):
        (books / "valid" / name).rename(books / "valid" / Path(name).name)
    rows = written("retrieval", tmp_path / "out", books, train=4, validation=10, test=4)["validation"]
    for row in rows:
        assert (places(row["first"])[:2] == places(row["second"])[:2]) == (row["label"] == "1")


def test_a_split_depends_on_its_own_size_and_the_seed(books: Path, tmp_path: Path) -> None:
    some = written("retrieval", tmp_path / "out", books, train=6, validation=5, test=4)
    others = written("retrieval", tmp_path / "out", books, train=8, validation=5, test=4)
    assert (others["validation"], others["test"]) == (some["validation"], some["test"])
    assert written("retrieval", tmp_path / "out", books, seed=1, train=8, validation=5, test=4)["test"] != some["test"]


def test_excerpts_keep_characters_whole_where_there_are_no_spaces() -> None:
    source, content = random.Random(0), ("語" * 5_000).encode()
    for _ in range(20):
        text = excerpt(content, source.randrange(len(content) - EXCERPT))
        assert {*text} == {"語"}
        assert len(text.encode()) > EXCERPT - 6


def test_short_books_are_counted_and_too_few_are_refused(books: Path, tmp_path: Path) -> None:
    (books / "test" / "test2" / "short.md").write_text("short")
    written("retrieval", tmp_path / "out", books, train=1, validation=1, test=1)
    assert about(tmp_path / "out")["books_too_short"] == {"train": 0, "validation": 0, "test": 1}
    (books / "valid" / "valid1" / "book1.md").write_text("short")
    with pytest.raises(UserError, match="expected at least 2 books of 12,000 bytes or more for validation, got 1"):
        written("retrieval", tmp_path / "out", books, train=1, validation=1, test=1)
    with pytest.raises(UserError, match="got no books for train; name another folder"):
        written("retrieval", tmp_path / "out", books / "train")
    with pytest.raises(UserError, match="got another file; name a folder"):
        written("retrieval", tmp_path / "out", books / "test" / "test2" / "short.md")


def papers(folder: Path) -> Path:
    folder.mkdir()
    for name in PAPERS.values():
        one = b'1.0\ta\tb\t"One" text of ' + name.encode() + b"\tcaf\xe9"
        lines = [one, b"0\tc\td\tthree\tfour", b"1\te\tf\tg\th"]
        (folder / name).write_bytes(b"\n".join(lines) + b"\n")
    return folder


def test_the_pairs_of_the_arena_are_read_as_they_are(tmp_path: Path) -> None:
    given = papers(tmp_path / "papers")
    rows = written("retrieval", tmp_path / "out", given, test=2)
    assert {split: len(rows[split]) for split in SPLITS} == {"train": 3, "validation": 3, "test": 2}
    assert rows["validation"][:2] == [
        {"first": '"One" text of new_aan_pairs.eval.tsv', "second": "caf\ufffd", "label": "1"},
        {"first": "three", "second": "four", "label": "0"},
    ]
    assert "ACL Anthology Network" in str(about(tmp_path / "out")["pairs"])
    assert written("retrieval", tmp_path / "out", given / PAPERS["train"], test=2) == rows


def test_other_files_in_place_of_the_arenas_are_refused(tmp_path: Path) -> None:
    given = papers(tmp_path / "papers")
    with pytest.raises(UserError, match="expected at least 4 examples in the split 'test', got 3"):
        written("retrieval", tmp_path / "out", given, test=4)
    (given / PAPERS["test"]).write_text("1\ta\tb\tc\td\n2\ta\tb\tc\td\n")
    with pytest.raises(UserError, match=r"in new_aan_pairs.test.tsv, line 2, .* got 5 fields that begin with '2'"):
        written("retrieval", tmp_path / "out", given)
    (given / PAPERS["test"]).write_text("")
    with pytest.raises(UserError, match=r"expected pairs in new_aan_pairs.test.tsv, got an empty file"):
        written("retrieval", tmp_path / "out", given)
    (given / PAPERS["test"]).unlink()
    with pytest.raises(UserError, match=r"got no new_aan_pairs.test.tsv; add the file"):
        written("retrieval", tmp_path / "out", given)
