"""Time per token and memory after a short and a long context, for every causal mixer.

    python benchmarks/generation_speed.py [--contexts 1000,100000] [--tokens 32] [--repeats 15] [--dim 256] [--depth 2]
                                          [--heads 8] [--mixers A,B,C] [--device cpu] [--json FILE]

Each context is read once. Then every mixer makes `tokens` tokens after every context, `repeats` times, interleaved.
Times are medians over all of these tokens. The ratio is that of the last context to the first: 1 where the cost of a
token does not depend on its position. Weights are random.

Before that, a process for each mixer reads on from context to context and makes `tokens` tokens after each. Peak MiB is
its maximum memory up to there: of the GPU where there is one, otherwise of the process.
"""

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from longspan import LongspanConfig, LongspanForCausalLM, mixers
from longspan.cli import use_fastest_exact_products
from longspan.machine.environment import environment
from longspan.machine.memory import peak_memory
from longspan.tasks.language_modelling.generation import read_tokens

VOCABULARY = 256


def model(arguments: argparse.Namespace, mixer: str) -> LongspanForCausalLM:
    torch.manual_seed(0)
    config = LongspanConfig(
        mixers=[mixer],
        causal=True,
        position="none",
        dim=arguments.dim,
        depth=arguments.depth,
        heads=arguments.heads,
        vocab_size=VOCABULARY,
    )
    return LongspanForCausalLM(config).eval().to(arguments.device)


def make(lm: LongspanForCausalLM, scores: torch.Tensor, states: Any, tokens: int) -> list[float]:
    """Return the seconds that each of `tokens` tokens takes, from the states on."""
    taken = []
    for _ in range(tokens):
        start = time.perf_counter()
        scores, states = read_tokens(lm, [int(scores.argmax())], 1, states)
        if scores.device.type != "cpu":
            torch.accelerator.synchronize()
        taken.append(time.perf_counter() - start)
    return taken


def context_tokens(length: int) -> list[int]:
    generator = torch.Generator().manual_seed(0)
    tokens: list[int] = torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()
    return tokens


def peaks(arguments: argparse.Namespace, mixer: str, contexts: list[int]) -> list[int]:
    """Return the most bytes used until tokens were made after each context, in a process that does nothing else."""
    lm, tokens = model(arguments, mixer), context_tokens(max(contexts))
    states: Any = None
    at = 0
    found: list[int] = []
    for context in sorted(contexts):
        scores, states = read_tokens(lm, tokens[at:context], arguments.segment, states)
        make(lm, scores, states, arguments.tokens)
        found.append(peak_memory())
        at = context
    return found


def peaks_in_a_process(mixer: str) -> list[int]:
    command = [sys.executable, __file__, *sys.argv[1:], "--peaks-of", mixer]
    ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    found: list[int] = json.loads(ran.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--contexts", default="1000,100000", help="tokens read before")
    parser.add_argument("--tokens", type=int, default=32, help="tokens made at a time")
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--segment", type=int, default=512, help="tokens of the context read at a time")
    parser.add_argument("--mixers", default="", help="separated by commas (default: all that can be causal)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", type=Path, help="write the result here")
    parser.add_argument("--peaks-of", metavar="MIXER", help="print the peaks of this one in bytes, and nothing else")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    causal = [name for name in mixers.names() if mixers.describe(name).causal and mixers.describe(name).streaming]
    names = arguments.mixers.split(",") if arguments.mixers else causal
    contexts = [int(length) for length in arguments.contexts.split(",")]
    if arguments.peaks_of:
        print(json.dumps(peaks(arguments, arguments.peaks_of, contexts)))
        return
    memory = {name: dict(zip(sorted(contexts), peaks_in_a_process(name), strict=True)) for name in names}
    models = {name: model(arguments, name) for name in names}
    tokens = context_tokens(max(contexts))
    after = {
        (name, context): read_tokens(models[name], tokens[:context], arguments.segment)
        for name in names
        for context in contexts
    }
    taken: dict[tuple[str, int], list[float]] = {key: [] for key in after}
    for repeat in range(arguments.repeats + 1):
        for (name, context), (scores, states) in after.items():
            times = make(models[name], scores, states, arguments.tokens)
            # The first round compiles and touches memory.
            if repeat:
                taken[name, context] += times
    result = {
        name: {
            context: {
                "milliseconds": 1000 * statistics.median(taken[name, context]),
                "state_bytes": after[name, context][1].nbytes,
                "peak_bytes": memory[name][context],
            }
            for context in contexts
        }
        for name in names
    }
    first, last = contexts[0], contexts[-1]
    rows = [
        [
            name,
            *(by_context[context]["milliseconds"] for context in contexts),
            by_context[last]["milliseconds"] / by_context[first]["milliseconds"],
            *(f"{by_context[context]['state_bytes']:,}" for context in contexts),
            *(by_context[context]["peak_bytes"] / 2**20 for context in contexts),
            by_context[last]["peak_bytes"] / by_context[first]["peak_bytes"],
        ]
        for name, by_context in result.items()
    ]
    times_at, sizes_at, peaks_at = (
        [f"{what} at {context:,}" for context in contexts] for what in ("ms/token", "state bytes", "peak MiB")
    )
    print(tabulate(rows, ["mixer", *times_at, "ratio", *sizes_at, *peaks_at, "ratio"], floatfmt=".3f"))
    if arguments.json:
        written = {"result": result, "settings": vars(arguments) | {"json": None}, "environment": environment()}
        arguments.json.write_text(json.dumps(written, indent=2) + "\n")


if __name__ == "__main__":
    main()
