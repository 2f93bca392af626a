"""Classify generated graphs whose classes a few layers of message passing do not see.

    python benchmarks/generated_graphs.py [--graphs 1000] [--tasks distant,cycles] [--json FILE] [key=value ...]

`distant`: a ring with a marked node. Is its colour that of most nodes more than eight edges away? A node that reads
four edges far does not see them. Pooling nodes that read no further says how many have a colour, but not whether this
is the marked one's.
`cycles`: one ring, or two of half its length. All nodes have two neighbours, so attention along edges gives each of
them the same vector (Xu et al. 2019, https://arxiv.org/abs/1810.00826), with and without positions from random walks.

Each task is trained with the recipe `graphs` and several mixers.
"""

import argparse
import json
import random
import tempfile
from pathlib import Path
from typing import Any

from tabulate import tabulate

from longspan import train
from longspan.machine.environment import environment

MIXERS = (["graph"], ["graph", "linear"], ["graph", "additive"], ["graph", "softmax"])
WALKS = {"distant": (0,), "cycles": (0, 16)}


def distant(choose: random.Random) -> dict[str, Any]:
    """Return a ring of 40 to 60 nodes; the colours of those near the marked node are drawn by a fair coin."""
    size, own, most = choose.randint(40, 60), choose.choice("rb"), choose.choice("rb")
    far = [most] * round(0.75 * (size - 17)) + ["b" if most == "r" else "r"] * (size - 17 - round(0.75 * (size - 17)))
    choose.shuffle(far)
    near = [choose.choice("rb") for _ in range(16)]
    nodes = [own.upper(), *near[:8], *far, *near[8:]]
    edges = [[place, (place + 1) % size] for place in range(size)]
    return {"nodes": nodes, "edges": edges, "label": "same" if own == most else "different"}


def cycles(choose: random.Random) -> dict[str, Any]:
    """Return a ring of 10 to 16 nodes, or two rings with as many nodes in all, each of fewer than 10."""
    half, rings = choose.randint(5, 8), choose.choice((1, 2))
    size = 2 * half // rings
    edges = [[ring * size + place, ring * size + (place + 1) % size] for ring in range(rings) for place in range(size)]
    return {"nodes": ["n"] * (2 * half), "edges": edges, "label": "one" if rings == 1 else "two"}


TASKS = {"distant": distant, "cycles": cycles}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("settings", nargs="*", metavar="key=value", help="further settings of the recipe `graphs`")
    parser.add_argument(
        "--graphs",
        type=int,
        default=1000,
        help="graphs for training; a fifth as many are for validation, and for testing",
    )
    parser.add_argument("--tasks", default=",".join(TASKS), help="which tasks, separated by commas")
    parser.add_argument("--json", type=Path, help="write the result here")
    given = parser.parse_intermixed_args()
    if unknown := set(given.tasks.split(",")) - set(TASKS):
        parser.error(f"expected --tasks among {', '.join(TASKS)}, got {min(unknown)!r}")
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for task in (TASKS[name] for name in given.tasks.split(",")):
            choose = random.Random(0)
            splits = {"train": given.graphs, "validation": given.graphs // 5, "test": given.graphs // 5}
            data = {split: [task(choose) for _ in range(count)] for split, count in splits.items()}
            for walks in WALKS[task.__name__]:
                for mixers in MIXERS:
                    keys = [f"model.mixers={json.dumps(mixers)}", f"data.walk_positions={walks}", *given.settings]
                    run = train("graphs", keys, data=data, run=Path(folder) / "run", overwrite=True, progress=False)
                    name = "+".join(mixers)
                    scores = {split: run.scores[split].accuracy for split in ("validation", "test")}
                    row = {"task": task.__name__, "mixers": name, "walk_positions": walks, **scores}
                    rows.append({**row, "seconds": run.seconds})
                    print(rows[-1], flush=True)
    print(tabulate(rows, headers="keys", tablefmt="github", floatfmt=".3f"))
    if given.json:
        facts = {"rows": rows, "settings": given.settings, "environment": environment()}
        given.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
