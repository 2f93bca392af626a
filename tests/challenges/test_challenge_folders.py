"""Text and Image: folders of classes become three splits."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from challenge_files import about, written
from PIL import Image

from longspan.challenges.base import SPLITS
from longspan.data.processor import Unreadable
from longspan.errors import UserError


@pytest.fixture
def reviews(tmp_path: Path) -> Path:
    """30 and 20 texts for training, 6 for testing, and one without a label; all different."""
    root = tmp_path / "reviews"
    for part, label, number in (
        ("train", "neg", 30),
        ("train", "pos", 20),
        ("train", "unsup", 1),
        ("test", "neg", 4),
        ("test", "pos", 2),
    ):
        folder = root / part / label
        folder.mkdir(parents=True)
        for each in range(number):
            (folder / f"{each}_1.txt").write_text(f"{part} {label} {each}\nçà et là <br />", encoding="utf-8")
    return root


@pytest.mark.slow
def test_a_tenth_of_each_class_is_for_validation(reviews: Path, tmp_path: Path) -> None:
    rows = written("text", tmp_path / "out", reviews)
    assert {split: Counter(row["label"] for row in rows[split]) for split in SPLITS} == {
        "train": {"neg": 27, "pos": 18},
        "validation": {"neg": 3, "pos": 2},
        "test": {"neg": 4, "pos": 2},
    }
    texts = [row["text"] for split in SPLITS for row in rows[split]]
    assert len({*texts}) == len(texts) == 56
    for split in SPLITS:
        for row in rows[split]:
            part, label = row["text"].split()[:2]
            assert label == row["label"]
            assert part == ("test" if split == "test" else "train")
            assert row["text"].endswith("\nçà et là <br />")
    # In random order.
    assert [row["label"] for row in rows["train"]] != sorted(row["label"] for row in rows["train"])
    assert about(tmp_path / "out")["source"] == str(reviews)


def test_sizes_and_seeds_change_only_what_they_should(reviews: Path, tmp_path: Path) -> None:
    whole = written("text", tmp_path / "out", reviews)
    some = written("text", tmp_path / "out", reviews, train=7, validation=2)
    assert some == {"train": whole["train"][:7], "validation": whole["validation"][:2], "test": whole["test"]}
    other = written("text", tmp_path / "out", reviews, seed=1)
    assert {row["text"] for row in other["validation"]} != {row["text"] for row in whole["validation"]}
    with pytest.raises(UserError, match="expected at least 7 examples in the split 'test', got 6; ask for fewer"):
        written("text", tmp_path / "out", reviews, test=7)


def test_other_folders_are_refused(reviews: Path, tmp_path: Path) -> None:
    def refused(match: str, given: Path = reviews) -> None:
        with pytest.raises(UserError, match=match):
            written("text", tmp_path / "out", given)
        assert not (tmp_path / "out" / "about.json").exists()

    refused("such as aclImdb at .*, got no sub-folders 'train' and 'test'; name another", reviews / "train")
    refused("got a file; name another folder", reviews / "train" / "neg" / "0_1.txt")
    (reviews / "test" / "neutral").mkdir()
    (reviews / "test" / "neutral" / "1.txt").write_text("new")
    refused("expected the same classes in 'train' and 'test' of .*, got 'neutral' only in 'test'")
    (reviews / "train" / "neutral").mkdir()
    (reviews / "train" / "neutral" / "1.txt").write_text("new")
    refused("expected at least 2 files of each class in 'train', got 1 of 'neutral'")
    (reviews / "train" / "neutral" / "2.txt").write_bytes(b"caf\xe9")
    refused(r"expected text in UTF-8 in '.*2.txt', got other bytes \(byte 3\)")
    (reviews / "train" / "neutral" / "2.txt").write_text(" \n")
    refused("expected a text in '.*2.txt', got an empty file; remove it")


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Coloured images of 32 x 32 pixels, losslessly stored: 10 and 10 for training, 1 and 1 for testing."""
    root, source = tmp_path / "pictures", np.random.default_rng(0)
    for part, label, number in (("train", "cat", 10), ("train", "dog", 10), ("test", "cat", 1), ("test", "dog", 1)):
        (root / part / label).mkdir(parents=True)
        for each in range(number):
            pixels = source.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(root / part / label / f"{each}.png")
    return root


def levels(row: dict[str, str]) -> np.ndarray:
    return np.array(row["text"].split(" "), int).reshape(32, 32)


def test_images_are_their_grey_levels_row_by_row(pictures: Path, tmp_path: Path) -> None:
    rows = written("image", tmp_path / "out", pictures)
    assert {split: len(rows[split]) for split in SPLITS} == {"train": 18, "validation": 2, "test": 2}
    assert sorted(row["label"] for row in rows["validation"]) == ["cat", "dog"]
    for row in rows["test"]:
        with Image.open(pictures / "test" / row["label"] / "0.png") as image:
            np.testing.assert_array_equal(levels(row), np.asarray(image.convert("L")))
    assert about(tmp_path / "out")["resized"] == 0


def test_images_of_other_sizes_are_scaled_and_counted(pictures: Path, tmp_path: Path) -> None:
    wide = np.zeros((48, 100), np.uint8)
    wide[:, 50:] = 200
    Image.fromarray(wide).save(pictures / "test" / "cat" / "0.png")
    row = next(row for row in written("image", tmp_path / "out", pictures)["test"] if row["label"] == "cat")
    assert (levels(row)[:, :13] == 0).all()
    assert (levels(row)[:, 19:] == 200).all()
    assert about(tmp_path / "out")["resized"] == 1


def test_an_unreadable_image_is_named(pictures: Path, tmp_path: Path) -> None:
    (pictures / "train" / "dog" / "3.png").write_bytes(b"no image")
    with pytest.raises(Unreadable, match=r"dog/3\.png"):
        written("image", tmp_path / "out", pictures)
    assert not (tmp_path / "out" / "about.json").exists()
