"""Write splits for four tasks: books of passages, several or one each; pairs of excerpts; stars of reviews.

    python benchmarks/passages_and_stars.py BOOKS REVIEWS TABLES

BOOKS is a folder of Markdown files; passages are of the first 12. One has two sentences of each of one to three books,
in random order. Excerpts of one book each are of the first 20 with 40,000 words: 120 words in a row. Two excerpts of a
pair are of the same book or not; books of test pairs are not in training. REVIEWS is the folder aclImdb (Maas et al.
2011, https://aclanthology.org/P11-1015).
"""

import argparse
import itertools
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

PASSAGES = {"train": 810, "validation": 90, "test": 1500}
PAIRS = {"train": 1800, "validation": 200, "test": 2000}
BOOKS = 40


def write(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def sentences(book: Path, choose: random.Random) -> list[str]:
    """Sentences of 41 to 199 characters, in random order."""
    text = book.read_text(encoding="utf-8", errors="ignore")
    every = (" ".join(sentence.split()) for sentence in re.split(r"(?<=[.!?])\s+", text))
    found = [sentence for sentence in every if 40 < len(sentence) < 200]
    choose.shuffle(found)
    return found


def passage(books: Mapping[str, list[str]], choose: random.Random) -> dict[str, Any]:
    """Draw a passage; its sentences are not drawn again."""
    labels = choose.sample(list(books), choose.choice([1, 1, 2, 2, 3]))
    parts = [books[label].pop() for label in labels for _ in range(2)]
    choose.shuffle(parts)
    return {"text": " ".join(parts), "labels": sorted(labels)}


def long_books(books: Path) -> Iterator[list[str]]:
    """Words of each book that has more than 40,000."""
    every = (file.read_text(encoding="utf-8", errors="ignore").split() for file in sorted(books.rglob("*.md")))
    return (words for words in every if len(words) > 40_000)


def drawn(words: Sequence[str], count: int, choose: random.Random) -> list[str]:
    """Excerpts of 120 words, without titles, contents and licences, which are at both ends."""
    starts = choose.sample(range(2000, len(words) - 2000, 120), count)
    return [" ".join(words[start : start + 120]) for start in starts]


def excerpts(books: Path, choose: random.Random) -> dict[str, list[dict[str, str]]]:
    """Excerpts of 20 books, 40 of each book for training and 60 for the test."""
    found: dict[str, list[dict[str, str]]] = {"train": [], "test": []}
    for number, words in enumerate(itertools.islice(long_books(books), 20)):
        for place, text in enumerate(drawn(words, 100, choose)):
            found["train" if place < 40 else "test"].append({"text": text, "label": f"b{number}"})
    return found


def pairs(books: Path, choose: random.Random) -> dict[str, list[dict[str, str]]]:
    """Pairs of excerpts, half of them of one book each; no excerpt is in two pairs, no book in two splits.

    They are of 40 long books; where there are fewer, there are no pairs.
    """
    every = list(itertools.islice(long_books(books), BOOKS))
    if len(every) < BOOKS:
        return {}
    shares = {"train": every[:20], "validation": every[20:26], "test": every[26:]}
    found = {}
    for split, count in PAIRS.items():
        texts = [drawn(words, 2 * count // len(shares[split]) + 10, choose) for words in shares[split]]
        found[split] = rows = []
        for number in range(count):
            first, other = choose.sample(sorted(range(len(texts)), key=lambda book: -len(texts[book]))[:4], 2)
            second = other if number % 2 else first
            label = "same book" if second == first else "two books"
            rows.append({"first": texts[first].pop(), "second": texts[second].pop(), "label": label})
    return found


def reviews(folder: Path, choose: random.Random) -> list[dict[str, Any]]:
    """Texts and stars of the reviews of a split, in random order."""
    files = [file for kind in ("pos", "neg") for file in sorted((folder / kind).glob("*.txt"))]
    rows = [{"text": file.read_text(encoding="utf-8"), "label": int(file.stem.split("_")[1])} for file in files]
    choose.shuffle(rows)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("books", "reviews", "tables"):
        parser.add_argument(name, type=Path)
    given = parser.parse_args()
    given.tables.mkdir(parents=True, exist_ok=True)
    choose = random.Random(0)
    files = sorted(given.books.rglob("*.md"))[:12]
    books = {f"b{number}": sentences(file, choose) for number, file in enumerate(files)}
    for split, count in PASSAGES.items():
        write(given.tables / f"passages_{split}.jsonl", (passage(books, choose) for _ in range(count)))
    for split, rows in excerpts(given.books, random.Random(0)).items():
        write(given.tables / f"excerpts_{split}.jsonl", rows)
    for split, rows in pairs(given.books, random.Random(0)).items():
        write(given.tables / f"pairs_{split}.jsonl", rows)
    choose = random.Random(0)
    train, test = (reviews(given.reviews / split, choose) for split in ("train", "test"))
    for split, rows in (("train", train[:1800]), ("validation", train[1800:2000]), ("test", test[:3000])):
        write(given.tables / f"stars_{split}.jsonl", rows)


if __name__ == "__main__":
    main()
