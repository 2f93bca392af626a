"""Time to evaluate a token: with states carried from segment to segment, against a window recomputed for each token.

    python benchmarks/evaluation_time.py [--lengths 800,1800,2800,3800] [--segment 128] [--dim 512] [--depth 12]
                                         [--heads 8] [--vocabulary 256] [--repeats 5] [--device cpu] [--json FILE]

A vanilla transformer (softmax attention, `window` = attention length, `stride` = 1) starts anew for each token it
predicts. Transformer-XL (`relative`, memory = attention length) reads each token once. Both have random weights, which
change nothing about the time, and full contexts. Runs are interleaved in one process; times are medians per token.
Dai et al. 2019 report, in table 9, that on a GPU the first is 363, 773, 1,409 and 1,874 times slower at these lengths.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tabulate import tabulate

from longspan import LongspanConfig, LongspanForCausalLM
from longspan.cli import use_fastest_exact_products
from longspan.machine.environment import environment
from longspan.tasks.language_modelling.generation import read_tokens
from longspan.tasks.language_modelling.likelihood import set_attention_length

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}


def model(arguments: argparse.Namespace, mixer: str, position: str) -> LongspanForCausalLM:
    torch.manual_seed(0)
    config = LongspanConfig(
        mixers=[mixer],
        causal=True,
        position=position,
        dim=arguments.dim,
        depth=arguments.depth,
        heads=arguments.heads,
        vocab_size=arguments.vocabulary,
    )
    return LongspanForCausalLM(config).eval().to(arguments.device)


def seconds(work: Callable[[], object], device: str) -> float:
    start = time.perf_counter()
    work()
    if device != "cpu":
        torch.accelerator.synchronize()
    return time.perf_counter() - start


@torch.no_grad()
def measure(arguments: argparse.Namespace, lengths: list[int]) -> dict[int, dict[str, float]]:
    """Return seconds per token by attention length and way."""
    vanilla, carried = model(arguments, "softmax", "sinusoidal"), model(arguments, "relative", "none")
    tokens = torch.randint(3, arguments.vocabulary, (max(lengths) + arguments.segment,))
    segment = tokens[None, : arguments.segment].to(arguments.device)
    windows, states = {}, {}
    for length in lengths:
        set_attention_length(carried, length)
        windows[length] = tokens[None, :length].to(arguments.device)
        states[length] = read_tokens(carried, tokens[:length].tolist(), arguments.segment)[1]
    taken: dict[int, dict[str, list[float]]] = {length: {"vanilla": [], "carried": []} for length in lengths}
    for repeat in range(arguments.repeats + 1):
        for length in lengths:
            set_attention_length(carried, length)
            ways = {
                "vanilla": (lambda n=length: vanilla(windows[n], logits_to_keep=1), 1),
                "carried": (
                    lambda n=length: carried(segment, past_key_values=states[n], use_cache=True),
                    arguments.segment,
                ),
            }
            for way, (work, made) in ways.items():
                spent = seconds(work, arguments.device) / made
                # The first round compiles and touches memory.
                if repeat:
                    taken[length][way].append(spent)
    return {length: {way: statistics.median(times) for way, times in ways.items()} for length, ways in taken.items()}


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", default=",".join(map(str, PUBLISHED)), help="attention lengths in tokens")
    parser.add_argument("--segment", type=int, default=128, help="tokens read at a time with carried states")
    parser.add_argument("--dim", type=int, default=512)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=5, help="timed runs of each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    result = measure(arguments, [int(length) for length in arguments.lengths.split(",")])
    rows = [
        [length, 1000 * row["vanilla"], 1000 * row["carried"], row["vanilla"] / row["carried"], PUBLISHED.get(length)]
        for length, row in result.items()
    ]
    headers = ["attention length", "window, ms/token", "carried, ms/token", "ratio", "ratio of Dai et al."]
    print(tabulate(rows, headers, floatfmt=("", ".2f", ".4f", ",.0f", ",.0f"), missingval="-"))
    if arguments.json:
        written = {"result": result, "settings": vars(arguments) | {"json": None}, "environment": environment()}
        arguments.json.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
