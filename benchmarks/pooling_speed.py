"""Mixers that pool against one dense layer, and time per token of every linear mixer at two lengths.

    python benchmarks/pooling_speed.py [--short 4096] [--long 65536] [--repeats 9] [--mixers NAME,...] [--json FILE]

The clock covers forward and backward, input and parameters both asking for gradients. All candidates of a table take
turns in one process, and the median of their turns is shown. At 65,536 tokens most of what is left is the system's
work of mapping fresh memory for the output and the gradient; THP_MEM_ALLOC_ENABLE=1 in the environment has torch ask
for huge pages.
"""

import argparse
import json
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from tabulate import tabulate
from torch import nn
from turns import medians, settle_allocator

from longspan import mixers
from longspan.cli import use_fastest_exact_products
from longspan.machine.environment import environment

DIM = 256
# Cheaper, all of them, than this layer: nothing of size t x dim x dim is left in their bidirectional form.
POOLING = ("messages", "competitive_lookup", "competitive_gate")
LAYER = f"Linear({DIM}, {DIM})"


def linear_variants(chosen: list[str], longest: int) -> dict[str, Callable[[], nn.Module]]:
    """Return how to build every mixer whose stated cost is linear, and its causal form where it has one."""
    variants: dict[str, Callable[[], nn.Module]] = {}
    for name in chosen:
        if not mixers.build(name, DIM).linear:
            continue
        known = mixers.options(name)
        options = {"max_length": longest} if "max_length" in known else {}
        variants[name] = lambda name=name, options=options: mixers.build(name, DIM, **options)
        if "causal" in known:
            variants[f"{name}, causal"] = lambda name=name, options=options: mixers.build(
                name, DIM, causal=True, **options
            )
    return variants


def turn(module: nn.Module, x: torch.Tensor, gradient: torch.Tensor) -> None:
    """Run forward and backward."""
    module.zero_grad()
    module(x.detach().requires_grad_()).backward(gradient)


def timed(modules: dict[str, nn.Module], b: int, t: int, repeats: int) -> dict[str, float]:
    """Return the median milliseconds of each module at (b, t, DIM)."""
    x, gradient = torch.randn(b, t, DIM), torch.randn(b, t, DIM)
    return medians({name: partial(turn, module, x, gradient) for name, module in modules.items()}, repeats)


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--short", type=int, default=4096, help="tokens of a short document")
    parser.add_argument("--long", type=int, default=65536, help="tokens of a long one")
    parser.add_argument("--repeats", type=int, default=9, help="timed turns of each candidate")
    parser.add_argument("--mixers", default=",".join(mixers.names()), help="candidates of the second table")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    torch.manual_seed(0)

    settle_allocator()
    candidates = {LAYER: nn.Linear(DIM, DIM)} | {name: mixers.build(name, DIM) for name in POOLING}
    pooling = []
    for b, t in ((2, arguments.short), (1, arguments.long)):
        taken = timed(candidates, b, t, arguments.repeats)
        pooling += [
            {"mixer": name, "shape": f"{b} x {t:,}", "ms": ms, "of_linear": ms / taken[LAYER]}
            for name, ms in taken.items()
        ]
    print(tabulate([list(row.values()) for row in pooling], ["", "tokens", "ms", "of the layer"], floatfmt=".2f"))

    variants = linear_variants(arguments.mixers.split(","), arguments.long)
    modules = {LAYER: candidates[LAYER]} | {name: build() for name, build in variants.items()}
    short = timed(modules, 1, arguments.short, arguments.repeats)
    long = timed(modules, 1, arguments.long, arguments.repeats)
    growth = []
    for name in modules:
        each = [1e3 * short[name] / arguments.short, 1e3 * long[name] / arguments.long]
        growth.append({"mixer": name, "us_short": each[0], "us_long": each[1], "ratio": each[1] / each[0]})
    header = ["", f"µs per token of {arguments.short:,}", f"of {arguments.long:,}", "ratio"]
    print("\n" + tabulate([list(row.values()) for row in growth], header, floatfmt=".2f"))
    if arguments.json:
        result = {"pooling": pooling, "per_token": growth, "environment": environment()}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
