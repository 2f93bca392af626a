"""Time of training, prediction and generation beside other programs, by how threads wait for each other.

    python benchmarks/busy.py [--programs 0,1,2] [--settings A,B,C] [--seconds 1.5] [--rounds 2] [--json FILE]

`programs` are loops that never rest, each in a process of its own. Each setting has a process; `longspan` is that of
the command line, `default` PyTorch without it. Rounds alternate between settings. Numbers are means in milliseconds
over the rounds, as a few very long calls are what a busy machine does; ratios are to one thread beside the same
programs.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

SETTINGS: dict[str, dict[str, str]] = {
    "one": {"OMP_NUM_THREADS": "1"},
    "default": {},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
    "spin-1000": {"GOMP_SPINCOUNT": "1000"},
    "spin-10000": {"GOMP_SPINCOUNT": "10000"},
    "longspan": {},
}


def workloads() -> dict[str, Callable[[], object]]:
    import torch

    from longspan import LongspanConfig, LongspanForCausalLM, LongspanForSequenceClassification
    from longspan.mixers import build
    from longspan.tasks.language_modelling.generation import read_tokens

    torch.manual_seed(0)
    causal = {"causal": True, "position": "none", "dim": 128, "depth": 2, "heads": 4, "vocab_size": 256}
    lm = LongspanForCausalLM(LongspanConfig(mixers=["additive"], **causal))
    step = torch.optim.AdamW(lm.parameters())
    tokens = torch.randint(3, 256, (8, 256))
    writer = LongspanForCausalLM(LongspanConfig(mixers=["additive"], **causal)).eval()
    state = read_tokens(writer, tokens[0].tolist(), 256, None)[1]
    classifier = LongspanForSequenceClassification(
        LongspanConfig(mixers=["additive"], dim=128, depth=2, heads=4)
    ).eval()
    documents = {"input_ids": torch.randint(3, 256, (32, 200)), "attention_mask": torch.ones(32, 200).long()}
    long, short = torch.randn(4, 2048, 128, requires_grad=True), torch.randn(1, 200, 128)
    additive, gated = build("additive", 128, heads=4), build("gated_linear", 128, heads=4, causal=True)
    wide = torch.randn(512, 512, dtype=torch.float64)

    def train() -> None:
        step.zero_grad()
        lm(input_ids=tokens, labels=tokens).loss.backward()
        step.step()

    def predict() -> None:
        with torch.no_grad():
            classifier(**documents)

    def forward() -> None:
        with torch.no_grad():
            additive(short)

    return {
        "long, both ways": lambda: additive(long).sum().backward(),
        "short forward": forward,
        "compiled loops": lambda: gated(long).sum().backward(),
        "training step": train,
        "32 documents": predict,
        "one token": lambda: read_tokens(writer, [5], 1, state),
        "MKL, float64": lambda: wide @ wide,
    }


def measure(setting: str, seconds: float) -> dict[str, float]:
    """Return the mean milliseconds of each workload in this process."""
    from longspan.machine import busy
    from longspan.machine.session import use_fastest_exact_products

    taken = {}
    with ExitStack() as stack:
        if setting == "longspan":
            stack.enter_context(busy.watch())
        use_fastest_exact_products()
        for name, work in workloads().items():
            for _ in range(3):
                work()
            start, count = time.perf_counter(), 0
            while time.perf_counter() - start < seconds:
                work()
                count += 1
            taken[name] = 1e3 * (time.perf_counter() - start) / count
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", default="0,1,2")
    parser.add_argument("--settings", default=",".join(SETTINGS))
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure, arguments.seconds)))
        return
    from tabulate import tabulate

    from longspan.machine.environment import environment

    settings = arguments.settings.split(",")
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "MKL_"))}
    found: dict[str, dict[str, dict[str, float]]] = {}
    for programs in map(int, arguments.programs.split(",")):
        runs: dict[str, list[dict[str, float]]] = {setting: [] for setting in settings}
        others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(programs)]
        try:
            for _ in range(arguments.rounds):
                for setting in settings:
                    command = [sys.executable, __file__, "--measure", setting, "--seconds", str(arguments.seconds)]
                    ended = subprocess.run(
                        command, env=plain | SETTINGS[setting], check=True, stdout=subprocess.PIPE, text=True
                    )
                    runs[setting].append(json.loads(ended.stdout))
        finally:
            for other in others:
                other.kill()
        found[str(programs)] = {
            setting: {name: statistics.fmean(run[name] for run in runs[setting]) for name in runs[setting][0]}
            for setting in settings
        }
        rows: list[list[Any]] = []
        for name in found[str(programs)][settings[0]]:
            times = [found[str(programs)][setting][name] for setting in settings]
            rows.append([name, *(f"{time:.3g} ({time / times[0]:.2f})" for time in times)])
        print(f"\nbeside {programs} programs, milliseconds (ratio to {settings[0]})\n")
        print(tabulate(rows, headers=["", *settings]), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps({"environment": environment(), "milliseconds": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()
