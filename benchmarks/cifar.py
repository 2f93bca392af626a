"""Write tables of CIFAR-10 with its usual splits: 45,000, 5,000 and 10,000 images.

    python benchmarks/cifar.py IMAGES TABLES

IMAGES is the data set as image files, in train/CLASS and test/CLASS. TABLES gets train.csv, validation.csv and
test.csv. The last tenth of each class of train/, by file name, is for validation; the Long Range Arena takes the last
tenth, too.
"""

import argparse
import csv
from collections.abc import Iterable
from pathlib import Path

KINDS = {".jpg", ".jpeg", ".png"}


def images(folder: Path) -> list[Path]:
    """Return the image files of a class, sorted."""
    return sorted(path for path in folder.iterdir() if path.suffix.lower() in KINDS)


def classes(folder: Path) -> list[Path]:
    """Return the folders of the classes of a split, sorted."""
    return sorted(path for path in folder.iterdir() if path.is_dir())


def write(path: Path, files: Iterable[Path]) -> None:
    """Write a table of images with their classes, which are the names of their folders."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["image", "label"])
        table.writerows([one.absolute(), one.parent.name] for one in files)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", type=Path)
    parser.add_argument("tables", type=Path)
    given = parser.parse_args()
    given.tables.mkdir(parents=True, exist_ok=True)
    train: list[Path] = []
    validation: list[Path] = []
    for folder in classes(given.images / "train"):
        files = images(folder)
        kept = len(files) - len(files) // 10
        train += files[:kept]
        validation += files[kept:]
    write(given.tables / "train.csv", train)
    write(given.tables / "validation.csv", validation)
    write(given.tables / "test.csv", (file for folder in classes(given.images / "test") for file in images(folder)))


if __name__ == "__main__":
    main()
