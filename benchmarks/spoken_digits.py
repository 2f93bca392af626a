"""Write tables of the Free Spoken Digit Dataset: its test split, one speaker left out at a time, and one to another.

    python benchmarks/spoken_digits.py RECORDINGS TABLES

RECORDINGS is its folder of DIGIT_SPEAKER_INDEX.wav. The official test split has the indices 0 to 4 of each speaker and
digit. A tenth of the other recordings, drawn at random, is for validation; the same without each speaker in turn.
`A_to_B` trains with speaker A and tests with B. `two` trains with even indices of two speakers and tests with odd ones.
"""

import argparse
import csv
import random
from collections.abc import Sequence
from itertools import permutations
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
    speakers = sorted({file.stem.split("_")[1] for file in files})
    spoken = {speaker: [file for file in files if file.stem.split("_")[1] == speaker] for speaker in speakers}
    for speaker, own in spoken.items():
        write(given.tables / f"without_{speaker}_test.csv", own)
        write_split(given.tables, f"without_{speaker}", [file for file in files if file not in set(own)], 150, choose)
    for one, other in permutations(speakers, 2):
        write(given.tables / f"{one}_to_{other}_test.csv", spoken[other])
        write_split(given.tables, f"{one}_to_{other}", spoken[one], 100, choose)
    halves: tuple[list[Path], list[Path]] = ([], [])
    for file in spoken[speakers[0]] + spoken[speakers[1]]:
        halves[int(file.stem.split("_")[2]) % 2].append(file)
    write(given.tables / "two_test.csv", halves[1])
    write_split(given.tables, "two", halves[0], 50, choose)


if __name__ == "__main__":
    main()
