"""One sequence over several processes: bytes, memory and time of a step, against one process with the whole sequence.

    python benchmarks/context_parallel.py [--parts bytes,memory,time] [--mixers additive,linear,delta]
                                          [--tokens 131072] [--time-tokens 16384] [--rounds 9] [--json FILE]

Bytes: number that each of 8 processes receives per layer and row in a forward pass of mixers of width 1,024 with 16
heads or 8 slots, of 512 and of 8,192 tokens, against that of the states. The loopback device counts them, too. Memory:
growth of the resident memory in a step of a language model (width 128, 2 layers) over `--tokens`, of each of 4
processes with a slice against one with all; and bytes of what the forward pass saves. Time: of a step over
`--time-tokens`, 2 processes with a thread each against one with two threads; both take turns, and medians count.
"""

import argparse
import gc
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from tabulate import tabulate

from longspan import LongspanConfig, LongspanForCausalLM, mixers
from longspan.cli import use_fastest_exact_products
from longspan.machine.environment import environment
from longspan.ops import slices
from longspan.training.context_parallel import ProcessSlices

WIDTH, HEADS, SLOTS = 1024, 16, 8
STATES = {
    "additive": 2 * (WIDTH + HEADS),
    "competitive_lookup": 2 * (WIDTH + HEADS),
    "competitive_gate": 2 * WIDTH + HEADS,
    "recurrent": 2 * WIDTH,
    "messages": SLOTS * (WIDTH + 2),
    "linear": WIDTH * WIDTH // HEADS + WIDTH,
    "gated_linear": WIDTH * WIDTH // HEADS + HEADS,
    "delta": 2 * WIDTH * WIDTH // HEADS,
}


def loopback() -> int:
    """Bytes that the loopback device has received."""
    lines = Path("/proc/net/dev").read_text(encoding="utf-8").splitlines()
    return next(int(line.split(":")[1].split()[0]) for line in lines if line.strip().startswith("lo:"))


def count_bytes(cut: ProcessSlices, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Bytes of each mixer at both lengths."""
    rows = []
    for name, numbers in STATES.items():
        options = {"recurrent": {"cell": "sru"}, "messages": {"slots": SLOTS}}.get(name, {"heads": HEADS})
        mixer = mixers.build(name, WIDTH, causal=True, **options)
        row: dict[str, Any] = {"mixer": name, "computed": 4 * (cut.count - 1) * numbers}
        for length in (512, 8192):
            x = torch.zeros(1, length // cut.count, WIDTH)
            dist.barrier()
            before, seen = cut.received, loopback()
            dist.barrier()
            with slices.entered(cut), torch.no_grad():
                mixer(x)
            row[f"received at {length}"] = cut.received - before
            dist.barrier()
            row[f"loopback at {length}"] = round((loopback() - seen) / cut.count)
            dist.barrier()
        rows.append(row)
    return rows


def build(name: str, dim: int) -> LongspanForCausalLM:
    """Language model of bytes, the same in all processes."""
    torch.manual_seed(0)
    forget = {"forget": "input"} if "forget" in mixers.options(name) else {}
    return LongspanForCausalLM(
        LongspanConfig(
            vocab_size=256, dim=dim, depth=2, heads=8, mixers=[name], causal=True, short_convolution=4, **forget
        )
    )


def step(model: LongspanForCausalLM, tokens: torch.Tensor, cut: ProcessSlices | None) -> float:
    """Take a step without an optimizer, of a slice or of all tokens; seconds of it."""
    targets = tokens.roll(-1, 1)
    if cut is not None:
        tokens, targets = cut.cut(tokens, 0), cut.cut(targets, -100)
    start = time.perf_counter()
    with slices.entered(cut):
        model(tokens, shift_labels=targets, num_items_in_batch=targets.numel()).loss.backward()
        if cut is not None:
            # As DDP averages gradients.
            flat = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
            dist.all_reduce(flat)
    taken = time.perf_counter() - start
    model.zero_grad()
    return taken


def resident(key: str) -> float:
    """Resident memory of this process in MB, now (VmRSS) or at its highest (VmHWM)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key)) / 1024


def growth(model: LongspanForCausalLM, tokens: torch.Tensor, cut: ProcessSlices | None) -> float:
    """Growth of resident memory in a step, in MB."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")
    before = resident("VmRSS")
    step(model, tokens, cut)
    return resident("VmHWM") - before


def saved(model: LongspanForCausalLM, tokens: torch.Tensor, cut: ProcessSlices | None) -> float:
    """Size of what a forward pass saves for the backward pass, weights left out, in MB."""
    storages: dict[int, int] = {}
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    kept = []

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            storages[storage.data_ptr()] = storage.nbytes()
            # So that no other tensor gets its address; with its graph, it would never be freed.
            kept.append(tensor.detach())
        return tensor.detach()

    tokens = tokens if cut is None else cut.cut(tokens, 0)
    with slices.entered(cut), torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        model(tokens, shift_labels=tokens)
    return sum(storages.values()) / 2**20


def measure_memory(cut: ProcessSlices, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Growth of memory with slices, the most of all processes, and of the first one with whole rows."""
    rows = []
    for name in arguments.mixers:
        model = build(name, 128)
        tokens = torch.randint(1, 256, (1, arguments.tokens), generator=torch.Generator().manual_seed(0))
        # Compiled loops and buffers of libraries come with the first step.
        step(model, tokens[:, :4096], cut)
        dist.barrier()
        sliced = torch.tensor([growth(model, tokens, cut)])
        dist.all_reduce(sliced, dist.ReduceOp.MAX)
        dist.barrier()
        whole = growth(model, tokens, None) if cut.number == 0 else 0.0
        dist.barrier()
        activations = saved(model, tokens, cut)
        dist.barrier()
        row = {"mixer": name, "resident, whole MB": whole, "resident, slice MB": float(sliced)}
        if cut.number == 0:
            row |= {"saved, whole MB": saved(model, tokens, None), "saved, slice MB": activations}
        dist.barrier()
        rows.append(row)
    return rows


def measure_time(cut: ProcessSlices, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """Medians of steps, slices and whole rows taking turns."""
    rows = []
    for name in arguments.mixers:
        model = build(name, 256)
        tokens = torch.randint(1, 256, (1, arguments.time_tokens), generator=torch.Generator().manual_seed(0))
        sliced, whole = [], []
        for _ in range(arguments.rounds + 1):
            dist.barrier()
            torch.set_num_threads(1)
            sliced.append(step(model, tokens, cut))
            dist.barrier()
            if cut.number == 0:
                torch.set_num_threads(cut.count)
                whole.append(step(model, tokens, None))
            # The others sleep until the first has finished.
            dist.barrier()
        if cut.number == 0:
            found = {"two processes s": statistics.median(sliced[1:]), "one process s": statistics.median(whole[1:])}
            rows.append({"mixer": name, **found})
    return rows


PARTS = {"bytes": (8, count_bytes), "memory": (4, measure_memory), "time": (2, measure_time)}


def work(rank: int, part: str, folder: str, arguments: argparse.Namespace) -> None:
    """Measure in one of the processes; the first writes what was found."""
    count, measure = PARTS[part]
    torch.set_num_threads(1)
    use_fastest_exact_products()
    dist.init_process_group("gloo", f"file://{folder}/{part}", rank=rank, world_size=count)
    assert dist.group.WORLD is not None
    rows = measure(ProcessSlices(dist.group.WORLD), arguments)
    if rank == 0:
        (Path(folder) / f"{part}.json").write_text(json.dumps(rows), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS))
    parser.add_argument("--mixers", type=lambda text: text.split(","), default=["additive", "linear", "delta"])
    parser.add_argument("--tokens", type=int, default=131_072)
    parser.add_argument("--time-tokens", type=int, default=16_384)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    result: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in arguments.parts:
            mp.start_processes(work, (part, folder, arguments), PARTS[part][0], start_method="fork")
            result[part] = json.loads((Path(folder) / f"{part}.json").read_text(encoding="utf-8"))
            print(tabulate(result[part], headers="keys", floatfmt=",.3f"), flush=True)
            if arguments.json:
                written = {"result": result, "environment": environment()}
                arguments.json.write_text(json.dumps(written, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
