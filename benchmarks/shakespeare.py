"""Language models of Shakespeare's characters: mechanisms at equal parameters and equal time, and at equal steps.

    python benchmarks/shakespeare.py INPUT.TXT --out FOLDER [--minutes 15] [--steps 0] [--alone] [--only NAME,...]
                                     [--model KEY=VALUE ...] [--seed 0] [--picture FILE.png] [--json FILE]

Every model has the same width and depth; the width of its feed-forward networks makes up for what its mixer has fewer
or more parameters, up to PARAMETERS. With `--minutes`, all have one deadline (`training.max_minutes`), and learning
rates follow the time; with `--steps`, all make as many. The last model is scored on the last tenth of the text, so the
score chooses nothing. Softmax attention cannot carry its state from segment to segment. It reads segments of the same
length one by one, and is scored in sliding windows that overlap by half; with `--alone`, so do the others. `--model`
sets more for all models: `--model forget=input short_convolution=4 position=none`; mixers that cannot forget are not
asked to. Runs that are finished are not repeated, and unfinished ones go on.
"""

import argparse
import dataclasses
import itertools
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pictures
import torch
from model_settings import chosen
from tabulate import tabulate

from longspan import LongspanForCausalLM, recipes
from longspan.machine.environment import environment

PARAMETERS = 2_000_000
SHAPE = {"dim": 192, "depth": 4, "heads": 8, "dropout": 0.1}
ROWS, SEGMENT = 16, 256
TRAINING = {
    "per_device_train_batch_size": ROWS,
    "segment_length": SEGMENT,
    "learning_rate": 2e-3,
    "lr_scheduler_type": "cosine",
    "warmup_steps": 100,
    "weight_decay": 0.1,
    "adam_beta2": 0.99,
    "bf16": True,
    "load_best_model_at_end": False,
    "eval_strategy": "steps",
    "save_strategy": "steps",
    "eval_steps": 0.2,
    "save_steps": 0.2,
    "num_train_epochs": 1000,
}
# Mixers and their options; without relative positions or a recurrence, sinusoids tell where in its segment a token
# stands. Numbers that went on through the text would be new ones at every step.
ENTRIES: dict[str, tuple[list[str], dict[str, Any], str]] = {
    "relative": (["relative"], {"relative": {"memory": SEGMENT}}, "none"),
    "additive": (["additive"], {}, "sinusoidal"),
    "messages": (["messages"], {}, "sinusoidal"),
    "competitive_gate": (["competitive_gate"], {}, "sinusoidal"),
    "competitive_lookup": (["competitive_lookup"], {}, "sinusoidal"),
    "local": (["local"], {}, "sinusoidal"),
    "linear": (["linear"], {}, "sinusoidal"),
    "gated_linear": (["gated_linear"], {}, "none"),
    "delta": (["delta"], {}, "none"),
    "local+additive": (["local", "additive"], {}, "sinusoidal"),
    "lstm": (["recurrent"], {"recurrent": {"cell": "lstm"}}, "none"),
    "softmax": (["softmax"], {}, "sinusoidal"),
}


def shape_of(name: str, parameters: int, more: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return the `[model]` settings of an entry and `more` of them, as large as `parameters` allow."""
    names, options, position = ENTRIES[name]
    settings = {**SHAPE, "mixers": names, "mixer_options": options, "position": position, **(more or {})}
    settings |= {"position_period": SEGMENT} if settings["position"] != "none" else {}

    def size(width: int) -> int:
        with torch.device("meta"):
            config = LongspanForCausalLM.configured(**settings, causal=True, vocab_size=68, feed_forward_dim=width)
            return LongspanForCausalLM(config).num_parameters()

    # Affine in the width, which is a multiple of 8.
    smallest, each = size(8), size(16) - size(8)
    return {**settings, "feed_forward_dim": 8 + 8 * ((parameters - smallest) // each)}


def train(data: Path, run: Path, model: dict[str, Any], training: dict[str, Any]) -> dict[str, Any]:
    """Train in a process of its own, unless that is done, and return what its metrics.json holds."""
    if not (run / "metrics.json").exists():
        recipe = recipes.load("shakespeare", [f"data.path={data}"])
        own = {key: training[key] for key in ("segment_length", "carry_states", "max_minutes") if key in training}
        recipe = dataclasses.replace(
            recipe,
            # Whole, so that what the recipe has by itself does not get into it.
            model=model,
            training=recipe.training | {key: value for key, value in training.items() if key not in own},
            options=dataclasses.replace(recipe.options, **own),
        )
        file = run.with_name(f"{run.name}.toml")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(recipe.to_toml(), encoding="utf-8")
        command = [sys.executable, "-m", "longspan", "train", str(file), "--run", str(run), "--json"]
        command += ["--resume"] if (run / "recipe.toml").exists() else []
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    result: dict[str, Any] = json.loads((run / "metrics.json").read_text())
    return result


def measure(arguments: argparse.Namespace, name: str) -> dict[str, Any]:
    """Train one entry and return its row of the table."""
    data, out, seed = arguments.data.resolve(), arguments.out, arguments.seed
    model = shape_of(name, arguments.parameters, chosen(arguments.model, ENTRIES[name][0]))
    entry, name = name, "-".join([name, *sorted(arguments.model), *(["alone"] if arguments.alone else [])])
    limit = {"max_steps": arguments.steps} if arguments.steps else {"max_minutes": arguments.minutes}
    training = {**TRAINING, **limit, "seed": seed, "carry_states": not arguments.alone}
    how = str(arguments.steps) if arguments.steps else f"{arguments.minutes:g}min"
    found = train(data, out / f"{name}-{how}-{seed}", model, training)
    steps, speed = found["steps"], found["tokens_per_second"]
    curve = [(row["step"], round(row["validation_loss"], 4)) for row in found["history"] if "validation_loss" in row]
    return {
        "name": name,
        "entry": entry,
        "nats": found["validation"]["loss"],
        "steps": steps,
        "tokens": steps * ROWS * SEGMENT,
        "tokens_per_second": speed,
        "minutes": steps * ROWS * SEGMENT / speed / 60,
        "parameters": found["parameters"],
        "peak_memory_bytes": found["peak_memory_bytes"],
        "feed_forward_dim": model["feed_forward_dim"],
        "curve": curve,
    }


def draw(rows: list[dict[str, Any]], path: Path, equal_steps: bool) -> None:
    """Draw the loss of each entry over its steps, or the minutes that they take, the best at the end named first."""
    styles = itertools.cycle([f"{marker}{line}" for line in ("-", "--") for marker in "os^Dv"])
    across = "steps" if equal_steps else "minutes of training"
    with pictures.curves(path, across, "nats per character, last tenth of the text") as axes:
        for row, style in zip(sorted(rows, key=lambda row: float(row["nats"])), styles, strict=False):
            each = 1.0 if equal_steps else row["minutes"] / row["steps"]
            steps, losses = zip(*row["curve"], strict=True)
            axes.plot([each * step for step in steps], losses, style, label=f"{row['entry']}  {row['nats']:.3f}")
        axes.set_xlim(left=0)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--steps", type=int, default=0, help="equal steps instead of equal time")
    parser.add_argument("--alone", action="store_true", help="read each segment from an empty state")
    parser.add_argument("--only", default=",".join(ENTRIES))
    parser.add_argument("--model", metavar="KEY=VALUE", nargs="*", default=[], help="more settings of every model")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--parameters", type=int, default=PARAMETERS)
    parser.add_argument("--picture", type=Path, help="draw the losses here, as PNG")
    parser.add_argument("--json", type=Path, help="write the result here")
    args = parser.parse_args()
    rows = []
    for name in args.only.split(","):
        rows.append(measure(args, name))
        print(f"{name}: {rows[-1]['nats']:.4f}", file=sys.stderr, flush=True)
    headers = ["mixer", "nats", "steps", "million tokens", "tokens/s", "minutes", "parameters"]
    cells = [
        [
            row["name"],
            f"{row['nats']:.4f}",
            f"{row['steps']:,}",
            f"{row['tokens'] / 1e6:.1f}",
            f"{row['tokens_per_second']:,.0f}",
            f"{row['minutes']:.1f}",
            f"{row['parameters']:,}",
        ]
        for row in sorted(rows, key=lambda row: float(row["nats"]))
    ]
    print(tabulate(cells, headers, tablefmt="github", disable_numparse=True))
    if args.picture:
        draw(rows, args.picture, equal_steps=args.steps > 0)
    if args.json:
        args.json.write_text(json.dumps({"rows": rows, "environment": environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
