"""Time of a training step and peak memory after ever more segments, for several causal mixers.

    python benchmarks/segment_memory.py [--marks 10,100,1000] [--rows 8] [--segment 128] [--dim 256] [--depth 2]
                                        [--heads 8] [--mixers A,B,C] [--json FILE]

All rows read one long document with the `SegmentTrainer` of language modelling, states carried from step to step. Each
mixer has a process of its own, one after another. Peak memory is its maximum up to that step: of the GPU where there is
one, otherwise of the process. Times are medians of the ten steps up to it. The rival is softmax attention that carries
its keys and values, which the trainer otherwise does not, up to the second mark only.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from tabulate import tabulate
from transformers import TrainerCallback, TrainingArguments
from transformers.trainer_callback import PrinterCallback

from longspan import LongspanConfig, LongspanForCausalLM
from longspan.cli import use_fastest_exact_products
from longspan.machine.environment import environment
from longspan.machine.memory import peak_memory
from longspan.tasks.language_modelling.trainer import SegmentTrainer

RIVAL = "softmax carried"
MIXERS = ("additive", "messages", "competitive_gate", "linear", "local", "relative", "recurrent", RIVAL)
VOCABULARY = 256


class Watch(TrainerCallback):
    """Takes the time of each step and notes, at some of them, what was used up to then."""

    def __init__(self, marks: list[int]) -> None:
        self.marks = marks
        self.started = 0.0
        self.taken: list[float] = []
        self.rows: list[dict[str, float]] = []
        self.trainer: SegmentTrainer | None = None

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.started = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.taken.append(time.perf_counter() - self.started)
        assert self.trainer is not None
        if state.global_step in self.marks:
            states = self.trainer._states
            self.rows.append(
                {
                    "step": state.global_step,
                    "seconds": statistics.median(self.taken[-10:]),
                    "peak_bytes": peak_memory(),
                    "state_bytes": states.nbytes if states is not None else 0,
                }
            )


def measure(name: str, marks: list[int], arguments: argparse.Namespace) -> list[dict[str, float]]:
    tokens = np.random.default_rng(0).integers(2, VOCABULARY, arguments.rows * arguments.segment * marks[-1] - 1)
    document = Dataset.from_dict({"input_ids": [tokens.astype(np.int32)], "length": [len(tokens)]})
    torch.manual_seed(0)
    config = LongspanConfig(
        mixers=["softmax" if name == RIVAL else name],
        causal=True,
        position="none",
        dim=arguments.dim,
        depth=arguments.depth,
        heads=arguments.heads,
        vocab_size=VOCABULARY,
        eos_token_id=1,
    )
    watch = Watch(marks)
    with tempfile.TemporaryDirectory() as folder:
        trainer = SegmentTrainer(
            LongspanForCausalLM(config),
            TrainingArguments(
                output_dir=folder,
                per_device_train_batch_size=arguments.rows,
                max_steps=marks[-1],
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                optim="adamw_torch_fused",
            ),
            train_dataset=document,
            segment_length=arguments.segment,
            carries=True,
            end_id=1,
            pad_id=0,
            callbacks=[watch],
        )
        watch.trainer = trainer
        trainer.remove_callback(PrinterCallback)
        trainer.train()
    return watch.rows


def in_its_own_process(name: str) -> list[dict[str, float]]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result.json"
        # The last of two options of the same name counts.
        command = [sys.executable, __file__, *sys.argv[1:], "--mixers", name, "--json", str(path)]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        rows: list[dict[str, float]] = json.loads(path.read_text())["result"][name]
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--marks", default="10,100,1000", help="steps after which to look")
    parser.add_argument("--rows", type=int, default=8)
    parser.add_argument("--segment", type=int, default=128, help="tokens that a row reads in one step")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--mixers", default=",".join(MIXERS), help="separated by commas")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    names = arguments.mixers.split(",")
    marks = sorted(int(mark) for mark in arguments.marks.split(","))
    if len(names) > 1:
        result = {name: in_its_own_process(name) for name in names}
    else:
        result = {name: measure(name, marks[:2] if name == RIVAL else marks, arguments) for name in names}
    table = [
        [
            name,
            row["step"],
            f"{1000 * row['seconds']:,.1f}",
            f"{row['peak_bytes'] / 2**20:,.0f}",
            f"{row['state_bytes'] / 2**20:,.2f}",
        ]
        for name, rows in result.items()
        for row in rows
    ]
    print(tabulate(table, ["mixer", "after step", "ms a step", "peak MiB", "states MiB"]))
    if arguments.json:
        settings = {key: value for key, value in vars(arguments).items() if key not in ("json", "mixers")}
        written = {"settings": settings, "environment": environment(), "result": result}
        arguments.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
