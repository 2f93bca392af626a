"""Classify the nodes of a citation graph with many seeds.

    python benchmarks/planetoid.py GRAPH [--seeds 20] [--baselines features,neighbours] [--json FILE] [key=value ...]

GRAPH is cora.npz or citeseer.npz, with the public split. Trains the recipe `nodes` with these settings once for each
seed. Each run keeps the step with the best validation accuracy. Prints validation and test accuracy, their mean and
standard deviation over seeds, and the seconds of a run.
"""

import argparse
import json
import statistics
import tempfile
from pathlib import Path

from tabulate import tabulate

from longspan import train
from longspan.machine.environment import environment

SPLITS = ("validation", "test")


def summary(values: list[float]) -> str:
    """Return mean and standard deviation of shares in percent."""
    spread = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{100 * statistics.mean(values):.2f} ± {100 * spread:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", type=Path)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="further settings of the recipe `nodes`")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--json", type=Path, help="write the result here")
    given = parser.parse_intermixed_args()
    rows: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(given.seeds):
            keys = [f"data.path={given.graph}", f"training.seed={seed}", *given.settings]
            run = train("nodes", keys, run=Path(folder) / str(seed))
            rows.append({split: run.scores[split].accuracy for split in SPLITS} | {"seconds": run.seconds})
            print(seed, rows[-1], f"kept {run.kept_epoch}", flush=True)
    table = [[split, summary([row[split] for row in rows])] for split in SPLITS]
    table.append(["seconds of a run", f"{statistics.median(row['seconds'] for row in rows):.0f}"])
    print(tabulate(table, ["", f"{given.graph.stem}, {given.seeds} seeds"], tablefmt="github", disable_numparse=True))
    if given.json:
        facts = {"rows": rows, "settings": given.settings, "environment": environment()}
        given.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
