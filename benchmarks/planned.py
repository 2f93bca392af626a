"""Predictions of `longspan plan`, compared with trainings: seconds per step and peak memory.

    python benchmarks/planned.py --out FOLDER [--cases documents,characters,images] [--mixers additive,softmax]
                                 [--lengths 512,2048,8192] [--least 24] [--json FILE]

Each plan and each training has a process of its own. Data are generated: documents of random words, some as long as the
longest length and others shorter; characters; images of noise. A training reads whole epochs, so that its batches are
those of the plan, and `--least` steps at least. Its seconds per step are the mean over all steps but the first two. Its
memory is the most that its process had until it ended, model card and report included (VmHWM).
"""

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from tabulate import tabulate

import longspan
from longspan import recipes
from longspan.cli import quieten_transformers, use_fastest_exact_products
from longspan.errors import UserError
from longspan.machine.environment import environment
from longspan.training.base import LongspanTrainer

SETTINGS = {
    "documents": ["classify", "model.wide=false", "training.per_device_train_batch_size=8"],
    "characters": ["shakespeare", "model.wide=false", "training.max_eval_tokens=2000"],
    "images": ["images", "training.per_device_train_batch_size=16"],
}
WHOLE = ["training.max_minutes=0", "training.min_steps=0"]
LENGTHS = {"characters": [256, 512], "images": [32, 64]}


def make_data(case: str, folder: Path, longest: int) -> Path:
    """Write generated data, if they are not there, and return their path."""
    drawn, path = random.Random(0), folder / {"documents": "documents.csv", "characters": "text.txt"}.get(case, case)
    words = [f"w{number}" for number in range(3000)]
    if path.exists():
        return path
    if case == "documents":
        sizes = [longest if number % 2 else drawn.randint(20, longest) for number in range(60)]
        rows = [f"{' '.join(drawn.choices(words, k=size))},{'ab'[size % 3 > 0]}" for size in sizes]
        path.write_text("\n".join(["text,label", *rows]), encoding="utf-8")
    elif case == "characters":
        path.write_text(" ".join(drawn.choices(words, k=10_000)), encoding="utf-8")
    else:
        noise = np.random.default_rng(0)
        for label in ("a", "b"):
            (path / label).mkdir(parents=True)
            for number in range(120):
                Image.fromarray(noise.integers(0, 256, (64, 64, 3), np.uint8)).save(path / label / f"{number}.png")
    return path


def trained(words: list[str]) -> None:
    """Train in this process, and print the times of all steps and the most memory."""
    starts: list[float] = []
    usual = LongspanTrainer.training_step

    def step(self: Any, *args: Any, **kwargs: Any) -> Any:
        starts.append(time.perf_counter())
        return usual(self, *args, **kwargs)

    LongspanTrainer.training_step = step  # type: ignore[method-assign]
    quieten_transformers()
    use_fastest_exact_products()
    recipe, run, *overrides = words
    longspan.train(recipe, overrides, run=run, overwrite=True, progress=False)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(json.dumps({"seconds": np.diff(starts).tolist(), "bytes": most}))


def in_process(*command: str) -> Any:
    """Run Python in a process of its own, and return the JSON that it prints."""
    done = subprocess.run([sys.executable, *command], stdout=subprocess.PIPE, check=True)
    return json.loads(done.stdout)


def mixing(recipe: str, mixer: str) -> list[str]:
    """Return the settings of a mixer; as in a plan, one that cannot forget does not."""
    own = [f"model.mixers={mixer}"]
    try:
        recipes.load(recipe, own)
    except UserError:
        own.append("model.forget=none")
    return own


def compared(case: str, mixer: str, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Plan a mixer, train it, and return a row for each length."""
    lengths = LENGTHS.get(case, arguments.lengths)
    data = make_data(case, arguments.out, max(arguments.lengths))
    words = [*SETTINGS[case], f"data.path={data}", *WHOLE]
    flags = ["--mixers", mixer, "--lengths", ",".join(map(str, lengths)), "--json"]
    found = in_process("-m", "longspan", "plan", *words, *flags)
    rows = []
    for run in found["runs"]:
        per_epoch = round(run["steps"] / run["epochs"])
        epochs = max(1, math.ceil(arguments.least / per_epoch))
        more = [f"{found['length_key']}={run['length']}", *mixing(words[0], mixer), "training.eval_strategy=epoch"]
        more += [f"training.num_train_epochs={epochs}"]
        own = in_process(__file__, "--train", words[0], str(arguments.out / "run"), *words[1:], *more)
        # At the end of an epoch, a validation and a checkpoint are no step.
        steps = [seconds for number, seconds in enumerate(own["seconds"], 1) if number % per_epoch and number > 2]
        measured = float(np.mean(steps))
        rows.append(
            {
                "case": case,
                "mixer": mixer,
                "length": run["length"],
                "extrapolated": not run["measured"],
                "predicted_seconds": run["seconds_per_step"],
                "measured_seconds": measured,
                "time_ratio": run["seconds_per_step"] / measured,
                "predicted_bytes": run["peak_memory_bytes"],
                "measured_bytes": own["bytes"],
                "memory_ratio": run["peak_memory_bytes"] / own["bytes"],
                "steps": len(steps),
                "planned_in_seconds": found["seconds"],
            }
        )
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--train"]:
        trained(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for data and runs")
    parser.add_argument("--cases", default=",".join(SETTINGS), help="what to plan and train")
    parser.add_argument("--mixers", default="additive,messages,gated_linear,softmax")
    parser.add_argument("--lengths", default="512,2048,8192", help="maximum lengths of documents")
    parser.add_argument("--least", type=int, default=24, help="steps of a training at least")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    arguments.lengths = [int(length) for length in arguments.lengths.split(",")]
    arguments.out.mkdir(parents=True, exist_ok=True)
    rows = [
        row
        for case in arguments.cases.split(",")
        for mixer in arguments.mixers.split(",")
        for row in compared(case, mixer, arguments)
    ]
    print(tabulate(rows, headers="keys", floatfmt=".3f"))
    if arguments.json:
        arguments.json.write_text(json.dumps({"rows": rows, "environment": environment()}, indent=2), encoding="utf-8")


if __name__ == "__main__":
    main()
