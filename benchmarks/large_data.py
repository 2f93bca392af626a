"""Memory and speed of training on shards that are read again in each pass (`data.streaming`).

    python benchmarks/large_data.py read classify|model-text --megabytes 200,2000 [--seconds 240] [--json FILE]
    python benchmarks/large_data.py speed classify|model-text [--rows 20000] [--words 230] [--rounds 2]
                                                             [--json FILE]
    python benchmarks/large_data.py many classify [--rows 500000] [--json FILE]

`read` writes JSON lines of generated text, and takes the batches that training would, without training: resident memory
after each eighth of the rows, in a process for each size. `speed` trains the same steps from data that are streamed and
from data that are stored, in turns, and gives the tokens in a second of processor time of the steps. Reading is a part
of it, also of the two blocks of rows that are read ahead. `many` trains one epoch on stored documents of 23 words, with
all cores: seconds of the whole command, and peak memory.
"""

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SETTINGS = [
    "training.max_minutes=0",
    "training.min_steps=0",
    "training.num_train_epochs=1",
    "training.save_total_limit=1",
]


def write_shards(folder: Path, megabytes: float, words_each: int, shards: int = 20) -> None:
    """Write about so many megabytes of documents: words of a Zipf-like vocabulary, and a class that some tell."""
    choose = random.Random(0)
    known = ["".join(choose.choices("abcdefghijklmnopqrstuvwxyz", k=choose.randrange(2, 10))) for _ in range(50_000)]
    weights = [1 / (rank + 10) for rank in range(len(known))]
    # Drawing words takes longer than to read them: texts are pieces of some megabytes that begin anywhere.
    pool = choose.choices(known, weights, k=2_000_000)
    for shard in range(shards):
        left = megabytes * 1e6 / shards
        with (folder / f"part-{shard:02}.jsonl").open("w") as file:
            while left > 0:
                start = choose.randrange(len(pool) - words_each)
                label = choose.choice(["north", "south"])
                text = " ".join([label[:2] * choose.randrange(2), *pool[start : start + words_each]])
                left -= file.write(json.dumps({"text": text, "label": label}) + "\n")


def memory() -> dict[str, float]:
    """Megabytes in memory: of this process alone, and of files that the system may drop."""
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(fields[f"Rss{name}"].split()[0]) / 1000 for name in ("Anon", "File")}


def read(recipe: str, folder: Path, seconds: float) -> dict[str, Any]:
    from longspan import recipes
    from longspan.verbs.preparing import prepare_whole_run
    from longspan.verbs.run_folders import RunFolder, arguments_of

    with tempfile.TemporaryDirectory() as run:
        loaded = recipes.load(recipe, [f"data.path={folder}", "data.streaming=true", *SETTINGS])
        ready = prepare_whole_run(loaded, 0)
        arguments = arguments_of(loaded, RunFolder(Path(run), "new"), False)
        trainer = loaded.task.make_trainer(loaded, ready.model, arguments, ready.prepared)
        steps, seen, found = len(trainer.get_train_dataloader()), 0, []
        prepared, began, spent = memory(), time.perf_counter(), time.process_time()
        for number, batch in enumerate(trainer.get_train_dataloader(), 1):
            seen += int(batch["attention_mask"].sum())
            if number % max(1, steps // 8) == 0:
                found.append({"share": round(number / steps, 3), **memory()})
                if time.perf_counter() - began > seconds:
                    break
    rate = seen / (time.process_time() - spent)
    return {"steps": steps, "prepared": prepared, "read": found, "tokens_per_cpu_second": rate}


def speed(recipe: str, folder: Path, streams: bool) -> dict[str, float]:
    # Not `longspan.train`: the command line keeps the garbage collector from visiting imported modules.
    from longspan.cli import main as command
    from longspan.training.base import LongspanTrainer

    usual, taken = LongspanTrainer._run_epoch, []

    def timed(self: Any, **given: Any) -> None:
        spent = time.process_time()
        usual(self, **given)
        taken.append(time.process_time() - spent)
        taken.append(self.real_tokens)

    LongspanTrainer._run_epoch = timed
    settings = [f"data.path={folder / 'all.jsonl'}", f"data.streaming={str(streams).lower()}", *SETTINGS]
    settings += ["training.eval_strategy=no", "training.save_strategy=no", "model.wide=false"]
    with tempfile.TemporaryDirectory() as run:
        code = command(["train", recipe, *settings, "--run", f"{run}/run"])
        if code:
            sys.exit(code)
    return {"seconds": taken[0], "tokens_per_cpu_second": taken[1] / taken[0]}


def many(recipe: str, folder: Path) -> dict[str, float]:
    command = [sys.executable, "-m", "longspan", "train", recipe, f"data.path={folder / 'all.jsonl'}", *SETTINGS]
    began, spent = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    with tempfile.TemporaryDirectory() as run:
        environment = {**os.environ, "HF_DATASETS_CACHE": f"{run}/cache"}
        subprocess.run([*command, "--run", f"{run}/run"], env=environment, check=True, capture_output=True)
        peak = json.loads(Path(run, "run", "metrics.json").read_text())["peak_memory_bytes"]
    seconds, used = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - spent
    return {"seconds": seconds, "cpu_seconds": used, "peak_gigabytes": peak / 1e9}


def in_a_process(*arguments: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_DATASETS_CACHE": cache}
        command = [sys.executable, "-W", "ignore", __file__, "one", *arguments]
        said = subprocess.run(command, env=environment, check=True, capture_output=True, text=True).stdout
    return dict(json.loads(said.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=["read", "speed", "many", "one"])
    parser.add_argument("recipe", help="classify or model-text")
    parser.add_argument("given", nargs="*", help=argparse.SUPPRESS)
    parser.add_argument("--megabytes", default="200,2000")
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--rows", type=int)
    parser.add_argument(
        "--words", type=int, help="words of a document: 23 for many, 2000 for model-text, otherwise 230"
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.work == "one":
        kind, folder, more = args.given
        one = read(args.recipe, Path(folder), float(more)) if kind == "read" else None
        print(json.dumps(one or speed(args.recipe, Path(folder), more == "true")))
        return
    result: dict[str, Any] = {}
    words = args.words or (2000 if args.recipe == "model-text" else 23 if args.work == "many" else 230)

    def note(name: str, value: Any) -> None:
        result[name] = value
        print(name, json.dumps(value), flush=True)
        if args.json:
            args.json.write_text(json.dumps({"work": args.work, "recipe": args.recipe, "result": result}, indent=1))

    if args.work == "read":
        for size in map(float, args.megabytes.split(",")):
            with tempfile.TemporaryDirectory() as name:
                write_shards(Path(name), size, words)
                note(f"{size:g} MB", in_a_process(args.recipe, "read", name, str(args.seconds)))
        return
    with tempfile.TemporaryDirectory() as name:
        # A word has seven characters or so, with its space.
        size = (args.rows or (500_000 if args.work == "many" else 20_000)) * (7 * words + 21) / 1e6
        write_shards(Path(name), size, words, shards=1)
        next(Path(name).iterdir()).rename(Path(name, "all.jsonl"))
        if args.work == "many":
            note(f"{size:.0f} MB", many(args.recipe, Path(name)))
            return
        rounds: dict[str, list[float]] = {"stored": [], "streamed": []}
        for _ in range(args.rounds):
            for kind, found in rounds.items():
                one = in_a_process(args.recipe, "speed", name, str(kind == "streamed").lower())
                found.append(one["tokens_per_cpu_second"])
                note("tokens per second of processor time", rounds)
        note("streamed / stored", statistics.median(rounds["streamed"]) / statistics.median(rounds["stored"]))


if __name__ == "__main__":
    main()
