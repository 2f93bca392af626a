"""Training throughput at the shape of Wu et al. 2021, the mixers interleaved in one process, and where time goes.

    python benchmarks/training_speed.py [--steps 12] [--profile] [--json FILE]

Batches have the sizes that the recipe makes of 25,000 film reviews: 64 documents of similar length, at most 32,768
tokens together. Documents have up to 1,024 tokens. The clock covers forward, backward and optimizer.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import torch
from tabulate import tabulate

from longspan import LongspanConfig, LongspanForSequenceClassification
from longspan.cli import use_fastest_exact_products
from longspan.machine.environment import environment

LENGTHS = (110, 150, 170, 190, 220, 260, 320, 420, 512, 800, 1024)


def batch(length: int) -> dict[str, torch.Tensor]:
    """Return a batch whose rows are a little shorter than the longest, as sorted documents are."""
    rows = min(64, 32768 // length)
    ids = torch.randint(2, 16000, (rows, length))
    mask = torch.arange(length).expand(rows, length) < length - torch.arange(rows).unsqueeze(1) * length // 2000
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.randint(0, 2, (rows,))}


def model(mixer: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    config = LongspanConfig(
        mixers=[mixer], feed_forward_dim=256, dropout=0.2, token_dropout=0.1, position="none", vocab_size=16000
    )
    made = LongspanForSequenceClassification(config).train()
    return made, torch.optim.AdamW(made.parameters(), 1e-3, weight_decay=0, fused=True)


def step(made: torch.nn.Module, optimizer: torch.optim.Optimizer, inputs: dict[str, torch.Tensor]) -> None:
    made(**inputs).loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--mixers", default="additive,softmax")
    parser.add_argument("--steps", type=int, default=11, help="timed steps of each mixer")
    parser.add_argument("--profile", action="store_true", help="also show the operators that take most time")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    names = arguments.mixers.split(",")
    trained = {name: model(name) for name in names}
    batches = [batch(LENGTHS[i % len(LENGTHS)]) for i in range(arguments.steps)]
    for name in names:
        step(*trained[name], batches[-1])
    rates: dict[str, list[float]] = {name: [] for name in names}
    seconds = dict.fromkeys(names, 0.0)
    for inputs in batches:
        for name in names:
            start = time.perf_counter()
            step(*trained[name], inputs)
            taken = time.perf_counter() - start
            seconds[name] += taken
            rates[name].append(int(inputs["attention_mask"].sum()) / taken)
    tokens = sum(int(inputs["attention_mask"].sum()) for inputs in batches)
    result = {
        name: {"tokens_per_second": tokens / seconds[name], "median_of_steps": statistics.median(rates[name])}
        for name in names
    }
    print(
        tabulate([[n, *r.values()] for n, r in result.items()], ["mixer", "tokens/s", "median step"], floatfmt=",.0f")
    )
    if arguments.profile:
        with torch.profiler.profile() as profile:
            for inputs in batches:
                step(*trained[names[0]], inputs)
        print(profile.key_averages().table(sort_by="self_cpu_time_total", row_limit=12, max_name_column_width=40))
    if arguments.json:
        arguments.json.write_text(json.dumps({"result": result, "environment": environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
