"""Time of a training step with forgetting, with a short convolution and with both, beside one with neither.

    python benchmarks/forgetting_speed.py [--mixers additive,messages,competitive_gate,linear] [--rows 16]
                                          [--segment 256] [--repeats 15] [--json FILE]

The models are those of `shakespeare.py`: four layers of width 192, 8 heads, and products in bfloat16. All have the
feed-forward width that gives the model with neither two million parameters. They alternate, one step each: forward
with the states of the segment before, backward, clipping, AdamW.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from shakespeare import PARAMETERS, SHAPE, shape_of
from tabulate import tabulate
from turns import medians, settle_allocator

from longspan import LongspanForCausalLM
from longspan.cli import use_fastest_exact_products
from longspan.machine.environment import environment

MORE: dict[str, dict[str, Any]] = {
    "neither": {},
    "forgetting": {"forget": "input"},
    "convolution": {"short_convolution": 4},
    "both": {"forget": "input", "short_convolution": 4},
}
VOCABULARY = 68


def step(settings: dict[str, Any], rows: int, segment: int) -> Callable[[], None]:
    """Return a training step of a new model."""
    torch.manual_seed(0)
    config = LongspanForCausalLM.configured(**settings, causal=True, vocab_size=VOCABULARY, pad_token_id=None)
    model = LongspanForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, fused=True)
    ids = torch.randint(0, VOCABULARY, (rows, segment))
    states = None

    def made() -> None:
        nonlocal states
        with torch.autocast("cpu", torch.bfloat16):
            output = model(input_ids=ids, labels=ids, past_key_values=states, use_cache=True)
        output.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        states = output.past_key_values.detach()

    return made


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mixers", default="additive,messages,competitive_gate,linear")
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--segment", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15, help="timed steps of each model")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    settle_allocator()
    found = {}
    for mixer in arguments.mixers.split(","):
        shape = {**shape_of(mixer, PARAMETERS), **SHAPE, "position": "none"}
        steps = {name: step(shape | more, arguments.rows, arguments.segment) for name, more in MORE.items()}
        found[mixer] = medians(steps, arguments.repeats)
    rows = [
        [mixer, times["neither"], *(times[name] / times["neither"] for name in MORE if name != "neither")]
        for mixer, times in found.items()
    ]
    headers = ["mixer", "neither, ms", *(f"{name}, times" for name in MORE if name != "neither")]
    print(tabulate(rows, headers, tablefmt="github", floatfmt=("", ".0f", ".2f", ".2f", ".2f")))
    if arguments.json:
        result = {"milliseconds": found, "environment": environment()}
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
