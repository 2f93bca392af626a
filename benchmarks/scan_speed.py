"""Speed of the gated recurrence against copies of the same bytes and against plain torch, interleaved in one process.

    python benchmarks/scan_speed.py [--positions 16384] [--dim 256] [--heads 8] [--repeats 31] [--json FILE]

A copy reads and writes each byte once, as the forward scan must. `copy_` and the loops write to memory that is there;
`clone` and the ops allocate theirs, and fresh pages can cost more than all the rest. Times are medians in milliseconds,
the other columns their ratios. The prefix softmax mean is the scan with the gates that it needs.
"""

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from turns import medians

from longspan.environment import environment
from longspan.ops import scan
from longspan.ops.pooling import prefix_softmax_mean
from longspan.ops.scan import numba, operators


def operations(positions: int, dim: int, heads: int) -> dict[str, Callable[[], Any]]:
    """Return what is timed, by name."""
    torch.manual_seed(0)
    values = torch.randn(1, positions, heads, dim // heads)
    logits, initial = torch.randn(1, positions, heads), torch.zeros(1, heads, dim // heads)
    gates, _ = scan.softmax_gates(logits)
    per_channel = gates.unsqueeze(-1).expand_as(values).contiguous()
    outputs, final = scan.lerp_scan(values, gates, initial)
    target, grad = torch.empty_like(values), torch.randn_like(values)
    inputs = [values.clone().requires_grad_(), logits.clone().requires_grad_()]

    def loops(gates: torch.Tensor) -> tuple[Callable[[], Any], Callable[[], Any]]:
        threads, grads = torch.get_num_threads(), [torch.empty_like(x) for x in (values, gates, initial)]
        forward = [x.numpy() for x in (values, gates, initial, target, torch.empty_like(final))]
        backward = [x.numpy() for x in (grad, final, values, gates, initial, outputs, *grads)]
        return lambda: numba.lerp_forward(*forward, threads), lambda: numba.lerp_backward(*backward, threads)

    forward, backward = loops(gates)
    channel_forward, channel_backward = loops(per_channel)
    return {
        "copy_": lambda: target.copy_(values),
        "loop forward": forward,
        "loop backward": backward,
        "loop forward, gate per channel": channel_forward,
        "loop backward, gate per channel": channel_backward,
        "clone": lambda: values.clone(),
        "lerp_scan forward": lambda: scan.lerp_scan(values, gates, initial),
        "lerp_scan backward": lambda: torch.ops.longspan.lerp_scan_backward(
            grad, final, values, gates, initial, outputs
        ),
        "softmax_gates forward": lambda: scan.softmax_gates(logits),
        "prefix mean forward": lambda: prefix_softmax_mean(values, logits),
        "prefix mean training": lambda: torch.autograd.grad(prefix_softmax_mean(*inputs)[0], inputs, grad),
        "plain torch: lerp_scan forward": lambda: in_torch(lambda: scan.lerp_scan(values, gates, initial)),
        "plain torch: prefix mean training": lambda: in_torch(
            lambda: torch.autograd.grad(prefix_softmax_mean(*inputs)[0], inputs, grad)
        ),
    }


def in_torch(operation: Callable[[], Any]) -> None:
    """Run an operation with the kernels that every device has."""
    with ExitStack() as stack:
        for each in (
            operators.lerp_scan,
            operators.lerp_scan_backward,
            operators.softmax_gates,
            operators.softmax_gates_backward,
        ):
            stack.enter_context(each.set_kernel_enabled("cpu", enabled=False))
        operation()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--positions", type=int, default=16384)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=31, help="timed runs of each operation")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    result = medians(operations(arguments.positions, arguments.dim, arguments.heads), arguments.repeats)
    copy, forward = result["copy_"], result["loop forward"]
    print(
        tabulate(
            [
                [name, milliseconds, milliseconds / copy, milliseconds / forward]
                for name, milliseconds in result.items()
            ],
            [f"1 x {arguments.positions} x {arguments.dim} float32", "ms", "of copy_", "of loop forward"],
            floatfmt=".2f",
        )
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"result": result, "environment": environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
