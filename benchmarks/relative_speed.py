"""Transformer-XL's attention in blocks against forms that hold the scores of all pairs.

    python benchmarks/relative_speed.py [--shapes 16x256x256,1x4096x0,4x150x1600] [--repeats 9] [--json FILE]

A shape is rows x new positions x positions of memory. All candidates get the same queries, keys, values and encoded
distances: 8 heads of width 24 in float32. They see the same keys, and must return the same. Then they alternate in one
process; the table has medians. Training is forward and backward, inference is forward without gradients. The rivals:

- "published": the operations of the published code in their order, each for all pairs at once. These are scores by
  content, scores by distance shifted into place, mask, softmax and values.
- "fused": the same scores by distance as the bias of `torch.nn.functional.scaled_dot_product_attention`.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention
from turns import attend, medians, settle_allocator

from longspan.cli import use_fastest_exact_products
from longspan.machine.environment import environment
from longspan.ops.relative import distance_range, relative_attention

HEADS, WIDTH = 8, 24
OURS = "relative_attention"
Attend = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def bias(position: Tensor, distance_key: Tensor, m: int) -> Tensor:
    """Return the scores by distance of all pairs (b, h, n, m), minus infinity for keys after their query."""
    b, h, n, _ = position.shape
    by_distance = position @ distance_key[:, :m].mT
    shifted = pad(by_distance, (1, 0)).view(b, h, m + 1, n)[:, :, 1:].reshape(b, h, n, m)
    later = torch.ones(n, m, dtype=torch.bool).triu(1 + m - n)
    return shifted.masked_fill(later, -torch.inf)


def published(content: Tensor, position: Tensor, key: Tensor, value: Tensor, distance_key: Tensor) -> Tensor:
    scores = content @ key.mT + bias(position, distance_key, key.shape[2])
    return scores.softmax(-1) @ value


def fused(content: Tensor, position: Tensor, key: Tensor, value: Tensor, distance_key: Tensor) -> Tensor:
    by_distance = bias(position, distance_key, key.shape[2])
    return scaled_dot_product_attention(content, key, value, attn_mask=by_distance, scale=1.0)


CANDIDATES: dict[str, Attend] = {OURS: partial(relative_attention, causal=True), "published": published, "fused": fused}


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--shapes", default="16x256x256,1x4096x0,4x150x1600", help="ROWSxNEWxMEMORY, with commas")
    parser.add_argument("--repeats", type=int, default=9, help="timed turns of each candidate")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    torch.manual_seed(0)
    settle_allocator()

    result: list[dict[str, Any]] = []
    for shape in arguments.shapes.split(","):
        b, n, memory = map(int, shape.split("x"))
        m = n + memory
        largest, smallest = distance_range(n, m, True, None)
        sizes = [(b, HEADS, n, WIDTH)] * 2 + [(b, HEADS, m, WIDTH)] * 2 + [(HEADS, largest - smallest + 1, WIDTH)]
        # Scores of about one, as trained models have them.
        inputs = [(torch.randn(size) * WIDTH**-0.25).requires_grad_() for size in sizes]
        gradient = torch.randn(b, HEADS, n, WIDTH)
        content, position, key, value, distance_key = inputs
        expected = relative_attention(content, position, key, value, distance_key, causal=True)
        for candidate in CANDIDATES.values():
            torch.testing.assert_close(
                candidate(content, position, key, value, distance_key), expected, rtol=1e-4, atol=1e-5
            )
        for work, given in (("training", gradient), ("inference", None)):
            turns = {name: partial(attend, candidate, inputs, given) for name, candidate in CANDIDATES.items()}
            taken = medians(turns, arguments.repeats)
            result.append({"shape": shape, "work": work, "milliseconds": taken})
    rivals = [name for name in CANDIDATES if name != OURS]
    print(
        tabulate(
            [
                [row["shape"], row["work"], *row["milliseconds"].values()]
                + [row["milliseconds"][name] / row["milliseconds"][OURS] for name in rivals]
                for row in result
            ],
            [
                "rows x new x memory",
                "work",
                *(f"{name}, ms" for name in CANDIDATES),
                *(f"faster than {name}" for name in rivals),
            ],
            floatfmt=".1f",
        )
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"result": result, "environment": environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
