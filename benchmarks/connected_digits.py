"""Label the frames of connected digits: recordings of minutes that are joined of the Free Spoken Digit Dataset.

    python benchmarks/connected_digits.py RECORDINGS FOLDER [--unseen] [key=value ...]

RECORDINGS is its folder of DIGIT_SPEAKER_INDEX.wav. The indices 0 to 4 of each speaker and digit are for testing, as in
its official split, 5 to 9 for validation, and the others for training. With --unseen, the last speaker by name is for
testing, the one before for validation, and the others are for training. A recording has one speaker, pauses of 0.1 to
0.8 seconds between digits, and white noise, 15 to 30 dB below the digits. FOLDER gets the joined recordings, tables of
their segments, and the run.

Prints frame accuracy and digit error rate by the length of recordings, and those of logistic regression on cepstral
coefficients over all of them.
"""

import argparse
import json
import random
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from longspan import evaluate, recipes, train
from longspan.tasks.frame_labelling.baselines.mfcc import Mfcc

RATE = 8000
PAUSES, DECIBELS = (0.1, 0.8), (15, 30)


def joined(files: Sequence[Path], minutes: float, choose: random.Random) -> tuple[np.ndarray, list[dict[str, Any]]]:
    """Return digits of one speaker with pauses and noise, (n,), and their segments."""
    noise, parts, segments, size = np.random.default_rng(choose.getrandbits(32)), [], [], 0
    level = 10 ** (-choose.uniform(*DECIBELS) / 20)
    while size < minutes * 60 * RATE:
        file = choose.choice(files)
        sound, rate = soundfile.read(file, dtype="float32")
        assert rate == RATE, f"{file} has {rate} samples per second"
        pause = np.zeros(round(choose.uniform(*PAUSES) * RATE), np.float32)
        start = size + len(pause)
        size = start + len(sound)
        parts += [pause, sound / max(1e-4, float(np.sqrt(np.square(sound).mean()))) * 0.05]
        segments.append({"start": start / RATE, "end": size / RATE, "label": file.stem.split("_")[0]})
    whole = np.concatenate(parts)
    return whole + 0.05 * level * noise.standard_normal(len(whole), np.float32), segments


def write(folder: Path, name: str, speakers: Sequence[Sequence[Path]], minutes: Sequence[float], seed: str) -> Path:
    """Write a recording of each length, by the speakers in turn, and return the table of their segments.

    Each round begins with another speaker, so that lengths that repeat are spoken by all.
    """
    choose, lines = random.Random(seed), []
    for number, length in enumerate(minutes):
        sound, segments = joined(speakers[(number + number // len(speakers)) % len(speakers)], length, choose)
        soundfile.write(folder / f"{name}_{number}.wav", sound, RATE)
        lines.append(json.dumps({"recording": f"{name}_{number}.wav", "segments": segments}))
    table = folder / f"{name}.jsonl"
    table.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return table


def by_index(files: dict[str, list[Path]]) -> tuple[list[list[Path]], ...]:
    """Return the files of each speaker for training, validation and testing, by their index."""
    index = {file: int(file.stem.split("_")[2]) for some in files.values() for file in some}
    ranges = (range(10, len(index)), range(5, 10), range(5))
    return tuple([[file for file in some if index[file] in each] for some in files.values()] for each in ranges)


def by_speakers(files: dict[str, list[Path]]) -> tuple[list[list[Path]], ...]:
    """Return the files of each speaker for training, validation and testing, which have different speakers."""
    *training, validation, test = (files[name] for name in sorted(files))
    return training, [validation], [test]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--lengths", type=float, nargs="+", default=[1, 2, 5, 10], help="minutes of test recordings")
    parser.add_argument("--each", type=int, default=4, help="test recordings of each length")
    parser.add_argument("--unseen", action="store_true", help="test a speaker who is not in training")
    parser.add_argument("--train-minutes", type=float, default=60, help="minutes of all training recordings")
    parser.add_argument("--only-data", action="store_true", help="write recordings and tables, and train nothing")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="further settings of the recipe `frames`")
    given = parser.parse_intermixed_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    by_speaker: dict[str, list[Path]] = {}
    for file in sorted(given.recordings.glob("*.wav")):
        by_speaker.setdefault(file.stem.split("_")[1], []).append(file)
    training, validation, test = by_speakers(by_speaker) if given.unseen else by_index(by_speaker)
    longest = given.lengths[-1] / 4
    tables = {
        "train": write(given.folder, "train", training, [longest] * round(given.train_minutes / longest), "train"),
        "validation": write(given.folder, "validation", validation, given.lengths[:-1], "validation"),
        "test": write(given.folder, "test", test, given.lengths * given.each, "test"),
    }
    if given.only_data:
        return
    keys = [f"data.{split}={table}" for split, table in tables.items()]
    keys += ["data.speed=0.25", "data.warp=0.2", "data.noise=0.1", *given.overrides]
    start = time.process_time()
    run = train("frames", keys, run=given.folder / "run", overwrite=True)
    tested = f"test speaker {max(by_speaker)}" if given.unseen else "known speakers"
    print(f"{len(training)} training speakers, {run.parameters:,} parameters, {run.steps} steps, "
          f"{time.process_time() - start:,.0f} CPU seconds; {tested}")  # fmt: skip
    print(f"{'':>22}  frame accuracy  macro-F1  digit error rate")
    for place, length in enumerate(given.lengths):
        found = tables["test"].read_text(encoding="utf-8").splitlines()[place :: len(given.lengths)]
        table = given.folder / f"test_{length:g}.jsonl"
        table.write_text("\n".join(found) + "\n", encoding="utf-8")
        show(f"{length:g} minutes", evaluate(run.folder, table).scores)
    show("all", run.scores["test"])
    show("validation", run.scores["validation"])
    fitted = Mfcc().fit(recipes.load("frames", keys)).scores
    show("logistic, all", fitted["test"])


def show(name: str, scores: Any) -> None:
    """Print a row of the table."""
    print(f"{name:>22}  {scores.accuracy:14.4f}  {scores.macro_f1:8.4f}  {scores.segment_error:16.4f}", flush=True)


if __name__ == "__main__":
    main()
