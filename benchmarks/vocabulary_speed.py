"""What a training step of a language model costs by vocabulary and kind of softmax, of the recipe `model-text`.

    python benchmarks/vocabulary_speed.py [--sizes 4000,10000,30000] [--rows 16] [--length 64] [--repeats 9] \
        [--json FILE]

"plain" has a row of `model.dim` numbers for each token, tied to the output. "factored" has rows of half the width
(`model.embedding_dim`). "adaptive" has an adaptive softmax with a cluster of the 2,000 most frequent tokens
(`model.cutoffs=[2000]`). All read random tokens with the frequencies of Zipf's law. A step is forward, backward and
AdamW. The candidates alternate in one process; the table has medians of CPU time, which other processes disturb little.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from tabulate import tabulate
from torch import Tensor

from longspan import LongspanForCausalLM, recipes
from longspan.cli import use_fastest_exact_products
from longspan.machine.environment import environment

#: The most frequent tokens, which have a cluster of their own.
FREQUENT = 2000


def candidates(size: int, dim: int) -> dict[str, dict[str, object]]:
    """Return the settings of each kind for a vocabulary of this size."""
    found: dict[str, dict[str, object]] = {"plain": {}, "factored": {"embedding_dim": dim // 2}}
    if size > FREQUENT:
        found["adaptive"] = {"cutoffs": [FREQUENT]}
    return found


def step_of(size: int, ids: Tensor, **more: object) -> Callable[[], None]:
    """Return a training step of the recipe's network with these settings."""
    settings = {**recipes.load("model-text").model, "wide": False, "causal": True, "vocab_size": size, **more}
    torch.manual_seed(0)
    model = LongspanForCausalLM(LongspanForCausalLM.configured(**settings)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        model(input_ids=ids[:, :-1], shift_labels=ids[:, 1:]).loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--sizes", default="4000,10000,30000", help="numbers of tokens in the vocabulary")
    parser.add_argument("--rows", type=int, default=16, help="rows of a batch")
    parser.add_argument("--length", type=int, default=64, help="tokens that a row reads in a step")
    parser.add_argument("--repeats", type=int, default=9, help="timed steps of each candidate")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    torch.manual_seed(0)
    dim = recipes.load("model-text").model.get("dim", 256)
    steps: dict[tuple[int, str], Callable[[], None]] = {}
    for size in map(int, arguments.sizes.split(",")):
        shares = 1 / torch.arange(3.0, size + 3)
        tokens = torch.multinomial(shares, arguments.rows * (arguments.length + 1), replacement=True)
        ids = tokens.view(arguments.rows, -1)
        for kind, more in candidates(size, dim).items():
            steps[size, kind] = step_of(size, ids, **more)
    taken: dict[tuple[int, str], list[float]] = {each: [] for each in steps}
    for turn in range(arguments.repeats + 2):
        for each, step in steps.items():
            before = time.process_time()
            step()
            # The first steps compile and allocate.
            if turn >= 2:
                taken[each].append(1000 * (time.process_time() - before))
    result = [
        {"vocabulary": size, "softmax": kind, "milliseconds": statistics.median(times)}
        for (size, kind), times in taken.items()
    ]
    print(
        tabulate([list(row.values()) for row in result], ["vocabulary", "softmax", "CPU ms per step"], floatfmt=".0f")
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"result": result, "environment": environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
