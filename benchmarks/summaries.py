"""Baselines of summarisation beside trained runs, on the same documents, with paired bootstrap intervals.

    python benchmarks/summaries.py data.path=meetings --split test --runs runs/summarisation

A run is scored by the summaries.txt that `longspan evaluate` wrote for the same split. Differences are those to the
system named by `--against`: an interval above 0 is significantly better, one below 0 significantly worse.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
from tabulate import tabulate

from longspan import recipes
from longspan.data.sources.loading import load
from longspan.machine.environment import environment
from longspan.tasks.summarisation.baselines._extraction import SummaryBaseline, mean_words, references
from longspan.tasks.summarisation.scores import ROUGE, better, bootstrap, rouge, signature
from longspan.verbs import fitting


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("overrides", nargs="+", metavar="data.KEY=VALUE")
    parser.add_argument("--split", default="test")
    parser.add_argument("--baselines", default="constant,lead,textrank,bm25,oracle")
    parser.add_argument("--runs", default="", help="run folders, separated by commas")
    parser.add_argument("--against", default="bm25", help="what the others are compared with")
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    given = parser.parse_args()

    recipe = recipes.load("summarisation", given.overrides)
    splits = load(recipe.data, recipe.task.columns(recipe.data)).splits
    words, (right, _) = mean_words(splits["train"]), references(splits[given.split])
    found: dict[str, np.ndarray] = {}
    told: dict[str, list[str]] = {}
    for name in filter(None, given.baselines.split(",")):
        started = time.process_time()
        baseline = fitting.find(recipe.task, name)
        assert isinstance(baseline, SummaryBaseline)
        texts, chosen = baseline.split_summaries(splits, words)
        found[name] = rouge(texts[given.split], right)
        settings = ", ".join(f"{key}={value}" for key, value in chosen.items() if key != "summary")
        told[name] = [f"{time.process_time() - started:.0f}", settings]
    for folder in filter(None, given.runs.split(",")):
        texts_of_run = Path(folder, "evaluation", "summaries.txt").read_text(encoding="utf-8").split("\n")[:-1]
        found[folder] = rouge(texts_of_run, right)
        told[folder] = ["", ""]
    ends = {name: bootstrap(scores) for name, scores in found.items()}
    print(f"{len(right)} examples, at most {words} words, {signature()}\n")
    rows = [
        [name, *map(_shown, scores.mean(0), ends[name]), *told[name]]  # type: ignore[arg-type]
        for name, scores in found.items()
    ]
    print(tabulate(rows, ["system", *ROUGE, "CPU s", "chosen on validation"], disable_numparse=True))
    result = {
        name: {"rouge": scores.mean(0).tolist(), "intervals": ends[name], "chosen": told[name][1]}
        for name, scores in found.items()
    }
    if given.against in found:
        gains = {name: better(scores, found[given.against]) for name, scores in found.items() if name != given.against}
        print(f"\nBetter than {given.against} by:\n")
        print(
            tabulate(
                [[name, *(f"{low:+.2f} to {high:+.2f}" for low, high in each)] for name, each in gains.items()],
                ["system", *ROUGE],
            )
        )
        for name, each in gains.items():
            result[name]["gain"] = each
    if given.json:
        written = {"environment": environment(), "against": given.against, "signature": signature(), "result": result}
        given.json.write_text(json.dumps(written, indent=2) + "\n")


def _shown(mean: float, ends: list[float]) -> str:
    return f"{mean:.2f} ({ends[0]:.2f} to {ends[1]:.2f})"


if __name__ == "__main__":
    main()
