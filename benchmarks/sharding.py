"""Memory and time of a training step with whole (DDP) and divided (FSDP2) weights, over several processes on CPUs.

    python benchmarks/sharding.py [--processes 1,2,4] [--dim 256] [--depth 4] [--rows 4] [--positions 128] [--steps 5]
                                  [--json FILE]

Each number of processes has a world of its own, with gloo, in which all kinds take turns, step by step. Bytes are those
that a process holds between steps: weights, and the two moments of AdamW for each. `rows` are those of all processes.
Seconds are medians, and the slowest process counts; processes share the cores of one machine, so that they say
what communication costs, not what more machines gain.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

KINDS = ("DDP", "full_shard", "shard_grad_op")


def measured(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Rows of the result for the processes that torchrun has started, this one among them."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from longspan import LongspanConfig, LongspanForCausalLM
    from longspan.training import processes, sharding

    processes.connect()
    shape: dict[str, Any] = {"dim": arguments.dim, "depth": arguments.depth, "heads": 4, "vocab_size": 1000}
    ids = torch.randint(3, 1000, (arguments.rows, arguments.positions), generator=torch.Generator().manual_seed(0))
    own = ids.chunk(processes.count())[processes.rank()]
    trained, kept, losses = {}, {}, {}
    for kind in KINDS:
        torch.manual_seed(0)
        model = LongspanForCausalLM(
            LongspanConfig(mixers=["additive"], causal=True, position="none", dropout=0.0, **shape)
        )
        if kind == "DDP":
            trained[kind] = DistributedDataParallel(model)
        else:
            kept[kind] = sharding.Shards(model, reshard=sharding.KINDS[kind])
            trained[kind] = kept[kind].module
    optimizers = {kind: torch.optim.AdamW(each.parameters(), 1e-3) for kind, each in trained.items()}
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for _ in range(1 + arguments.steps):
        for kind, each in trained.items():
            processes.wait()
            start = time.perf_counter()
            optimizers[kind].zero_grad()
            loss = each(input_ids=own, labels=own).loss
            loss.backward()
            optimizers[kind].step()
            seconds[kind].append(processes.largest(time.perf_counter() - start))
            losses[kind] = processes.total([float(loss.detach())])[0] / processes.count()
    rows = []
    for kind, each in trained.items():
        weights = sum(sharding.local_of(weight).nbytes for weight in each.parameters())
        states = optimizers[kind].state.values()
        moments = sum(sharding.local_of(value).nbytes for state in states for value in state.values())
        rows.append(
            {
                "processes": processes.count(),
                "kind": kind,
                "weight_bytes": int(processes.largest(weights)),
                "optimizer_bytes": int(processes.largest(moments)),
                # The first one allocates.
                "seconds": statistics.median(seconds[kind][1:]),
                "loss": losses[kind],
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--depth", type=int, default=4)
    parser.add_argument("--rows", type=int, default=4)
    parser.add_argument("--positions", type=int, default=128)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        rows = measured(arguments)
        if os.environ["RANK"] == "0":
            arguments.measure.write_text(json.dumps(rows))
        return
    from tabulate import tabulate

    from longspan.machine.environment import environment

    found: list[dict[str, Any]] = []
    sizes = [f"--{name}={getattr(arguments, name)}" for name in ("dim", "depth", "rows", "positions", "steps")]
    with tempfile.TemporaryDirectory() as folder:
        for count in arguments.processes.split(","):
            written = Path(folder, f"{count}.json")
            launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", count]
            subprocess.run([*launch, __file__, "--measure", str(written), *sizes], check=True)
            found += json.loads(written.read_text())
            if arguments.json:
                arguments.json.write_text(
                    json.dumps({"result": found, "arguments": sizes, "environment": environment()}, indent=2) + "\n"
                )
    print(tabulate(found, headers="keys", intfmt=","))


if __name__ == "__main__":
    main()
