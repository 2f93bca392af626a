"""Write tables of the Free Spoken Digit Dataset: its test split, and one speaker left out at a time.

    python benchmarks/spoken_digits.py RECORDINGS TABLES

RECORDINGS is its folder of DIGIT_SPEAKER_INDEX.wav. The official test split has the indices 0 to 4 of each speaker and
digit. A tenth of the other recordings, drawn at random, is for validation; the same without each speaker in turn.
"""

import argparse
import csv
import random
from collections.abc import Sequence
from pathlib import Path


def write(path: Path, files: Sequence[Path]) -> None:
    """Write a table of recordings with their digits."""
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.writer(file)
        table.writerow(["recording", "label"])
        table.writerows([file.absolute(), file.stem.split("_")[0]] for file in files)


def write_split(tables: Path, name: str, files: Sequence[Path], held_out: int, choose: random.Random) -> None:
    """Write files for training, but for some drawn at random for validation."""
    mixed = [*files]
    choose.shuffle(mixed)
    write(tables / f"{name}_train.csv", sorted(mixed[held_out:]))
    write(tables / f"{name}_validation.csv", sorted(mixed[:held_out]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("tables", type=Path)
    given = parser.parse_args()
    given.tables.mkdir(parents=True, exist_ok=True)
    files, choose = sorted(given.recordings.glob("*.wav")), random.Random(0)
    test = [file for file in files if int(file.stem.split("_")[2]) < 5]
    write(given.tables / "official_test.csv", test)
    write_split(given.tables, "official", [file for file in files if file not in set(test)], 180, choose)
    for speaker in sorted({file.stem.split("_")[1] for file in files}):
        own = [file for file in files if file.stem.split("_")[1] == speaker]
        write(given.tables / f"without_{speaker}_test.csv", own)
        write_split(given.tables, f"without_{speaker}", [file for file in files if file not in set(own)], 150, choose)


if __name__ == "__main__":
    main()
