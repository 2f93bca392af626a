"""Challenges that are made of the user's data: texts, images, pairs of texts."""

import json
import re
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from longspan.challenges import CHALLENGES
from longspan.errors import UserError


def rows(folder: Path, split: str) -> list[dict[str, str]]:
    return [json.loads(line) for line in (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    for half in ("train", "test"):
        for label in ("neg", "pos"):
            (tmp_path / "reviews" / half / label).mkdir(parents=True)
            for number in range(20):
                path = tmp_path / "reviews" / half / label / f"{number}_1.txt"
                path.write_text(f"{half} {label} {number}\nwell …", encoding="utf-8")
    unlabelled = tmp_path / "reviews" / "train" / "unsup"
    unlabelled.mkdir()
    (unlabelled / "0_0.txt").write_text("nothing", encoding="utf-8")
    return tmp_path / "reviews"


def test_texts_of_classes(tmp_path: Path, reviews: Path) -> None:
    texts = CHALLENGES["text"]
    texts.write(tmp_path / "a", reviews)
    counts = {
        split: Counter(row["label"] for row in rows(tmp_path / "a", split)) for split in ("train", "validation", "test")
    }
    assert counts == {
        "train": {"neg": 18, "pos": 18},
        "validation": {"neg": 2, "pos": 2},
        "test": {"neg": 20, "pos": 20},
    }
    read = [row["text"] for split in ("train", "validation") for row in rows(tmp_path / "a", split)]
    assert sorted(read) == sorted(f"train {label} {n}\nwell …" for label in ("neg", "pos") for n in range(20))
    about = json.loads((tmp_path / "a" / "about.json").read_text(encoding="utf-8"))
    assert (about["source"], about["examples"]["train"]) == (str(reviews), 36)
    # A seed draws another validation split.
    texts.write(tmp_path / "b", reviews, seed=1)
    assert rows(tmp_path / "a", "validation") != rows(tmp_path / "b", "validation")


def test_a_stopped_folder_is_not_complete(tmp_path: Path, reviews: Path) -> None:
    texts = CHALLENGES["text"]
    texts.write(tmp_path / "a", reviews)
    (reviews / "test" / "pos" / "3_1.txt").write_bytes(b"\xff")
    with pytest.raises(UserError, match=r"expected text in UTF-8 in '.*3_1.txt', got other bytes \(byte 0\)"):
        texts.write(tmp_path / "a", reviews)
    assert not (tmp_path / "a" / "about.json").exists()


def test_images_as_grey_levels(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    for half in ("train", "test"):
        for label in ("cat", "dog"):
            (tmp_path / "images" / half / label).mkdir(parents=True)
            for number in range(3):
                shape = (40, 20, 3) if (half, label, number) == ("test", "cat", 1) else (32, 32, 3)
                image = Image.fromarray(random.integers(0, 256, shape, np.uint8))
                image.save(tmp_path / "images" / half / label / f"{number}.png")
    CHALLENGES["image"].write(tmp_path / "a", tmp_path / "images")
    found = rows(tmp_path / "a", "train") + rows(tmp_path / "a", "validation")
    assert len(found) == 6
    wanted = {
        tuple(np.asarray(Image.open(path).convert("L")).reshape(-1))
        for path in (tmp_path / "images/train").rglob("*.png")
    }
    assert {tuple(map(int, row["text"].split(" "))) for row in found} == wanted
    assert json.loads((tmp_path / "a" / "about.json").read_text())["resized"] == 1
    assert all(len(row["text"].split(" ")) == 1024 for row in rows(tmp_path / "a", "test"))
    (tmp_path / "images" / "test" / "dog" / "0.png").write_bytes(b"no image")
    with pytest.raises(UserError, match=r"expected an image such as PNG, JPEG or WebP in '.*0.png'"):
        CHALLENGES["image"].write(tmp_path / "a", tmp_path / "images")


@pytest.fixture
def books(tmp_path: Path) -> Path:
    """Two authors, one of them with two books, in words that say which book and which place."""
    for split in ("train", "valid", "test"):
        for author, title in (("poe", "raven"), ("poe", "usher"), ("eco", "rose")):
            path = tmp_path / "books" / split / author / f"{title}.md"
            path.parent.mkdir(parents=True, exist_ok=True)
            words = (f"{split}:{title}:{place}:é" for place in range(1600))
            path.write_text(" ".join(words), encoding="utf-8")
    return tmp_path / "books"


def test_pairs_of_excerpts_of_books(tmp_path: Path, books: Path) -> None:
    CHALLENGES["retrieval"].write(tmp_path / "a", books, sizes={"train": 60, "validation": 10, "test": 10})
    for split, own in (("train", "train"), ("validation", "valid"), ("test", "test")):
        found = rows(tmp_path / "a", split)
        assert Counter(row["label"] for row in found) == {"0": len(found) // 2, "1": len(found) // 2}
        for row in found:
            places = []
            for text in (row["first"], row["second"]):
                assert 3950 < len(text.encode()) <= 4000
                words = [word.split(":") for word in text.split()]
                assert {word[0] for word in words} == {own}
                (title,) = {word[1] for word in words}
                places.append((title, {word[2] for word in words}))
            (first, here), (second, there) = places
            assert (first == second) == (row["label"] == "1")
            # The same book at two places, or books of two authors.
            assert not here & there if first == second else {"rose"} & {first, second}
    about = json.loads((tmp_path / "a" / "about.json").read_text(encoding="utf-8"))
    assert about["pairs"] == "pairs of excerpts of books"


def test_the_pairs_of_the_paper(tmp_path: Path) -> None:
    for name in ("train", "eval", "test"):
        lines = [f'{float(number % 2)}\tP{number}\tQ{number}\tone, "quoted\ttwo {name}' for number in range(4)]
        (tmp_path / f"new_aan_pairs.{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    CHALLENGES["retrieval"].write(tmp_path / "a", tmp_path, sizes={"test": 3})
    assert rows(tmp_path / "a", "validation")[1] == {"first": 'one, "quoted', "second": "two eval", "label": "1"}
    assert len(rows(tmp_path / "a", "test")) == 3
    (tmp_path / "new_aan_pairs.eval.tsv").write_text("1.0\tP\tQ\ttext\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"in new_aan_pairs.eval.tsv, line 1, .*, got 4 fields"):
        CHALLENGES["retrieval"].write(tmp_path / "a", tmp_path)
    (tmp_path / "new_aan_pairs.test.tsv").unlink()
    with pytest.raises(UserError, match=r"expected .* in .*, got no new_aan_pairs.test.tsv"):
        CHALLENGES["retrieval"].write(tmp_path / "a", tmp_path)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("text", "expected a folder with train/ and test/, .* at '.*', got no sub-folders 'train' and 'test'"),
        ("image", "expected a folder with train/ and test/, .* at '.*', got no sub-folders 'train' and 'test'"),
        ("retrieval", "expected a folder with train/, valid/ and test/ .* at '.*', got no books for train"),
    ],
)
def test_other_folders_are_refused(name: str, problem: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=problem):
        CHALLENGES[name].write(tmp_path / "a", tmp_path)
    with pytest.raises(
        UserError, match=f"expected data for {name}, got none; name {re.escape(CHALLENGES[name].needs)}"
    ):
        CHALLENGES[name].write(tmp_path / "a", None)


def test_sizes_and_seeds(tmp_path: Path, reviews: Path) -> None:
    for options, problem in (
        ({"sizes": {"train": 100}}, "expected at least 100 examples in the split 'train', got 36"),
        ({"sizes": {"training": 1}}, "there is no split 'training'"),
        ({"sizes": {"train": 0}}, "expected at least 1 example for the split 'train', got 0"),
        ({"seed": -1}, "expected a seed of 0 or more, got -1"),
    ):
        with pytest.raises(UserError, match=problem):
            CHALLENGES["text"].write(tmp_path / "a", reviews, **options)
    with pytest.raises(UserError, match="expected no data for listops, as it is generated"):
        CHALLENGES["listops"].write(tmp_path / "a", reviews)
