"""Write tables of CIFAR-10 with its usual splits: 45,000, 5,000 and 10,000 images.

    python benchmarks/cifar.py IMAGES TABLES [--draw N]

IMAGES is the data set as image files, in train/CLASS and test/CLASS. TABLES gets train.csv, validation.csv and
test.csv. The last tenth of each class of train/, by file name, is for validation; the Long Range Arena takes the last
tenth, too. With --draw, there are N images of train/, drawn at random, a tenth as many for validation but at least 500,
and 4,000 of test/.
"""

import argparse
import csv
import random
from collections.abc import Iterable
from pathlib import Path

KINDS = {".jpg", ".jpeg", ".png"}
#: Training images up to here may be drawn, the next ones are for validation.
DRAWN = 20_000


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
    parser.add_argument("--draw", metavar="N", type=int, help="number of training images, at most 20,000")
    given = parser.parse_args()
    given.tables.mkdir(parents=True, exist_ok=True)
    if given.draw is not None:
        shuffled, other = (
            [file for folder in classes(given.images / split) for file in images(folder)] for split in ("train", "test")
        )
        choose = random.Random(1)
        choose.shuffle(shuffled)
        choose.shuffle(other)
        write(given.tables / "train.csv", shuffled[: given.draw])
        write(given.tables / "validation.csv", shuffled[DRAWN : DRAWN + max(given.draw // 10, 500)])
        write(given.tables / "test.csv", other[:4000])
        return
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
