"""A language model's training step, on a GPU or a CPU: tokens a second, the share of what products could reach, memory.

    python benchmarks/language_step.py [--mixers additive,messages,delta,linear,softmax] [--shapes 8x4096,1x65536]
                                       [--dim 1024] [--depth 8] [--heads 16] [--vocabulary 32000] [--compile]
                                       [--device cuda] [--steps 8] [--seconds 60] [--json FILE]

Rows x positions of random tokens; bfloat16 autocast on a GPU, AdamW, the loss of every token. The mixers take turns, so
that a card that others use slows all of them. The share is 6 operations for each weight of the layers and the output,
over the product rate measured before. On a GPU an error ends a step in which the host waits for it. A line is printed,
and the file written, as soon as a shape is measured.
"""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from longspan import LongspanConfig, LongspanForCausalLM
from longspan.cli import use_fastest_exact_products
from longspan.machine.environment import environment
from longspan.machine.floors import measured_rates
from longspan.machine.memory import peak_memory


def stepping(arguments: argparse.Namespace, mixer: str, shape: tuple[int, int]) -> tuple[Callable[[], None], int]:
    """Return a function that takes a step, and the number of weights that each token is multiplied with."""
    torch.manual_seed(0)
    config = LongspanConfig(
        mixers=[mixer],
        causal=True,
        dim=arguments.dim,
        depth=arguments.depth,
        heads=arguments.heads,
        vocab_size=arguments.vocabulary,
        position="none",
        use_cache=False,
    )
    model = LongspanForCausalLM(config).train().to(arguments.device)
    weights = model.num_parameters(exclude_embeddings=True) + arguments.dim * arguments.vocabulary
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, fused=True)
    called: Any = torch.compile(model) if arguments.compile else model
    ids = torch.randint(arguments.vocabulary, shape, device=arguments.device)

    def step() -> None:
        with torch.autocast(arguments.device, torch.bfloat16, enabled=arguments.device != "cpu"):
            loss = called(input_ids=ids, labels=ids).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step, weights


def reset_peak(device: str) -> int:
    """Forget a GPU's peak of memory, and return the bytes that the models before have there; a CPU's peak stays."""
    if device == "cpu":
        return 0
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def timed(step: Callable[[], None], arguments: argparse.Namespace) -> float:
    """Return the seconds of a step."""
    gpu = arguments.device != "cpu"
    start = time.perf_counter()
    if gpu:
        torch.cuda.set_sync_debug_mode("error")
    try:
        step()
    finally:
        if gpu:
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
    return time.perf_counter() - start


def measured(arguments: argparse.Namespace, shape: tuple[int, int], rate: float) -> dict[str, dict[str, Any]]:
    """Return for each mixer what a step of this shape takes; a mixer that fails has the reason."""
    found: dict[str, dict[str, Any]] = {}
    steps: dict[str, tuple[Callable[[], None], int]] = {}
    for mixer in arguments.mixers.split(","):
        try:
            before = reset_peak(arguments.device)
            steps[mixer] = step, _ = stepping(arguments, mixer, shape)
            # They compile and allocate.
            step()
            step()
            found[mixer] = {"peak_bytes": peak_memory() - before}
        except (RuntimeError, ValueError) as error:
            steps.pop(mixer, None)
            found[mixer] = {"error": str(error).partition("\n")[0]}
    seconds: dict[str, list[float]] = {mixer: [] for mixer in steps}
    end = time.perf_counter() + arguments.seconds
    while seconds and len(next(iter(seconds.values()))) < arguments.steps and time.perf_counter() < end:
        for mixer, (step, _) in steps.items():
            seconds[mixer].append(timed(step, arguments))
    for mixer, taken in seconds.items():
        tokens = shape[0] * shape[1] / statistics.median(taken)
        found[mixer] |= {"seconds": taken, "tokens_per_second": tokens, "share": 6 * steps[mixer][1] * tokens / rate}
    return found


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--mixers", default="additive,messages,delta,linear,softmax")
    parser.add_argument("--shapes", default="8x4096,1x65536", help="rows x positions")
    parser.add_argument("--dim", type=int, default=1024)
    parser.add_argument("--depth", type=int, default=8)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=8, help="timed steps of each mixer")
    parser.add_argument("--seconds", type=float, default=60, help="no further turn begins after so long")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    use_fastest_exact_products()
    dtype = torch.float32 if arguments.device == "cpu" else torch.bfloat16
    result: dict[str, Any] = {"rate": measured_rates(dtype, arguments.device).operations, "shapes": {}}
    for name in arguments.shapes.split(","):
        rows, positions = map(int, name.split("x"))
        found = result["shapes"][name] = measured(arguments, (rows, positions), result["rate"])
        for mixer, row in found.items():
            said = row.get("error") or (
                f"{row['tokens_per_second']:,.0f} tokens/s, {row['share']:.1%} of products, "
                f"{row['peak_bytes'] / 2**30:.2f} GiB"
            )
            print(f"{name} {mixer}: {said}", flush=True)
        if arguments.json:
            arguments.json.write_text(json.dumps({"result": result, "environment": environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
