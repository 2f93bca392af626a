"""Windowed attention against the local-attention package, and against full attention where that is affordable.

    python benchmarks/local_speed.py [--radius 128] [--lengths 4096,16384] [--full 4096] [--repeats 9] [--json FILE]

All candidates get the same queries, keys and values: 8 heads of width 32 in float32. They see the same keys, and must
return the same. Then they alternate in one process; the table has medians. Training is forward and backward, inference
is forward without gradients.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from local_attention import LocalAttention
from tabulate import tabulate
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from turns import attend, medians, settle_allocator

from longspan.cli import use_fastest_exact_products
from longspan.machine.environment import environment
from longspan.ops.window import window_attention

HEADS, WIDTH = 8, 32
OURS, THEIRS, FULL = "window_attention", "LocalAttention", "full attention"


def candidates(radius: int, causal: bool, full: bool) -> dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]]:
    """Return what is compared: ours, theirs with the same visible keys, and perhaps attention to all keys."""
    theirs = LocalAttention(
        window_size=radius,
        causal=causal,
        look_backward=1,
        look_forward=0 if causal else 1,
        exact_windowsize=True,
        use_rotary_pos_emb=False,
    )
    chosen: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
        OURS: lambda q, k, v: window_attention(q, k, v, radius, causal=causal),
        THEIRS: theirs,
    }
    if full:
        chosen[FULL] = lambda q, k, v: scaled_dot_product_attention(q, k, v, is_causal=causal)
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--radius", type=int, default=128, help="neighbours seen on either side")
    parser.add_argument("--lengths", default="4096,16384", help="positions, multiples of the radius")
    parser.add_argument("--full", type=int, default=4096, help="the greatest length at which full attention takes part")
    parser.add_argument("--repeats", type=int, default=9, help="timed turns of each candidate")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    torch.manual_seed(0)
    settle_allocator()

    result: list[dict[str, Any]] = []
    for t in map(int, arguments.lengths.split(",")):
        inputs = [torch.randn(1, HEADS, t, WIDTH, requires_grad=True) for _ in range(3)]
        gradient = torch.randn(1, HEADS, t, WIDTH)
        for causal in (False, True):
            compared = candidates(arguments.radius, causal, t <= arguments.full)
            torch.testing.assert_close(compared[OURS](*inputs), compared[THEIRS](*inputs), rtol=1e-4, atol=1e-5)
            for work, given in (("training", gradient), ("inference", None)):
                turns = {name: partial(attend, candidate, inputs, given) for name, candidate in compared.items()}
                taken = medians(turns, arguments.repeats)
                result.append(
                    {"positions": t, "window": "causal" if causal else "both sides", "work": work}
                    | {"milliseconds": taken, "times_faster": taken[THEIRS] / taken[OURS]}
                )
    print(
        tabulate(
            [
                [row["positions"], row["window"], row["work"]]
                + [row["milliseconds"].get(name) for name in (OURS, THEIRS, FULL)]
                + [row["times_faster"]]
                for row in result
            ],
            ["positions", "window", "work", *(f"{name}, ms" for name in (OURS, THEIRS, FULL)), f"faster than {THEIRS}"],
            floatfmt=".1f",
        )
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"result": result, "environment": environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
