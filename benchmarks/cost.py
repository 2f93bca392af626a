"""Time of one layer against length, linear mixers and softmax attention: `python benchmarks/cost.py --out FOLDER`.

Layers of width 256 with 8 heads read one row of random float32 numbers, without gradients. Mixers alternate within each
length. Each time is the median of the repeats. FOLDER gets `cost.json` and `cost.png`, a log-log figure.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import matplotlib
import torch

from longspan import mixers
from longspan.machine.session import use_fastest_exact_products

matplotlib.use("Agg")
from matplotlib import pyplot as plt

DIM, HEADS = 256, 8
LONGEST_SOFTMAX = 32768


def seconds(layer: torch.nn.Module, x: torch.Tensor) -> float:
    start = time.perf_counter()
    with torch.inference_mode():
        layer(x)
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--mixers", default="additive,linear,softmax")
    parser.add_argument("--longest", type=int, default=65536)
    parser.add_argument("--repeats", type=int, default=7)
    arguments = parser.parse_args()
    use_fastest_exact_products()
    torch.manual_seed(0)
    names = arguments.mixers.split(",")
    layers = {name: mixers.build(name, dim=DIM, heads=HEADS).eval() for name in names}
    found: dict[str, dict[int, dict[str, float]]] = {name: {} for name in names}
    length = 256
    while length <= arguments.longest:
        x = torch.randn(1, length, DIM)
        here = {name: layer for name, layer in layers.items() if name != "softmax" or length <= LONGEST_SOFTMAX}
        for layer in here.values():
            seconds(layer, x)
        taken: dict[str, list[float]] = {name: [] for name in here}
        for _ in range(arguments.repeats):
            for name, layer in here.items():
                taken[name].append(seconds(layer, x))
        for name, values in taken.items():
            middle = statistics.median(values)
            found[name][length] = {"median": middle, "least": min(values), "most": max(values)}
            print(f"{length:6} {name:10} {1000 * middle:10.2f} ms", flush=True)
        length *= 2
    arguments.out.mkdir(parents=True, exist_ok=True)
    made = {"dim": DIM, "heads": HEADS, "threads": torch.get_num_threads(), "seconds": found}
    (arguments.out / "cost.json").write_text(json.dumps(made, indent=2) + "\n", encoding="utf-8")
    draw(found, arguments.out / "cost.png")


def draw(found: dict[str, dict[int, dict[str, float]]], path: Path) -> None:
    figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
    styles = {"softmax": ("#b2332b", "s"), "additive": ("#1f5fa8", "o")}
    for number, (name, times) in enumerate(found.items()):
        colour, marker = styles.get(name, (("#4c9a5f", "#8a6fb0", "#c98a2b")[number % 3], "^v<"[number % 3]))
        axes.loglog(
            list(times), [1000 * one["median"] for one in times.values()], color=colour, marker=marker, label=name
        )
        last = max(times)
        axes.annotate(
            name, (last, 1000 * times[last]["median"]), xytext=(6, 0), textcoords="offset points", va="center"
        )
    ticks = sorted({length for times in found.values() for length in times})[::2]
    axes.set_xticks(ticks, [f"{tick:,}" for tick in ticks])
    axes.minorticks_off()
    axes.margins(x=0.12)
    axes.set_xlabel("tokens in the document")
    axes.set_ylabel("milliseconds per layer")
    axes.grid(alpha=0.3)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.savefig(path, dpi=160)


if __name__ == "__main__":
    main()
