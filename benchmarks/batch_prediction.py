"""Predictions of one file by one process, by several and by Ray: seconds and processor time, in turns.

    python benchmarks/batch_prediction.py [--rows 40000] [--repeats 2] [--out FILE]

A classifier with two layers is trained for one epoch on generated documents of 60 words. Each engine then predicts the
same file as a command of its own, from its start to its end, imports included. All write equal tables. Processor time
is that of all processes of a command, but for those of Ray that outlive it.
"""

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

import longspan

WORDS = [f"word{number}" for number in range(400)]
ENGINES = {
    "one process": ["--output", "whole.parquet"],
    "--jobs 1": ["--jobs", "1", "--output", "one"],
    "--jobs 2": ["--jobs", "2", "--output", "two"],
    "--ray --jobs 2": ["--jobs", "2", "--output", "ray", "--ray"],
}


def document(choose: random.Random) -> tuple[str, str]:
    label = choose.choice("ab")
    words = WORDS[:300] if label == "a" else WORDS[100:]
    return " ".join(choose.choices(words, k=60)), label


def prepare(folder: Path, rows: int) -> None:
    """Write a run and a file of documents."""
    choose = random.Random(0)
    texts, labels = map(list, zip(*(document(choose) for _ in range(400)), strict=True))
    settings = {"dim": 64, "heads": 4, "depth": 2, "num_train_epochs": 1, "min_steps": 0, "max_minutes": 0}
    longspan.train("classify", data=(texts, labels), run=folder / "run", progress=False, **settings)
    lines = ["text", *(document(choose)[0] for _ in range(rows))]
    (folder / "rows.csv").write_text("\n".join(lines) + "\n", encoding="utf-8")


def measure(folder: Path, flags: list[str]) -> dict[str, float]:
    output = folder / flags[flags.index("--output") + 1]
    shutil.rmtree(output, ignore_errors=True)
    output.unlink(missing_ok=True)
    command = [sys.executable, "-m", "longspan", "predict", "run", "rows.csv", *flags]
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    seconds, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": round(seconds, 2), "processor_seconds": round(processor, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=40_000)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    result: dict[str, object] = {"rows": args.rows, "cores": os.cpu_count(), "engines": {name: [] for name in ENGINES}}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        prepare(folder, args.rows)
        for _ in range(args.repeats):
            for engine, flags in ENGINES.items():
                found = measure(folder, flags)
                result["engines"][engine].append(found)  # type: ignore[index]
                print(
                    f"{engine:16} {found['seconds']:7.1f} s {found['processor_seconds']:7.1f} s of processors",
                    flush=True,
                )
                if args.out is not None:
                    args.out.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")
        whole = pq.read_table(folder / "whole.parquet")
        for shards in ("one", "two", "ray"):
            assert pq.read_table(folder / shards).equals(whole), shards
        print("all tables are equal, row for row")


if __name__ == "__main__":
    main()
