"""Speed of the gated recurrence against copies of the same bytes and against plain torch, interleaved in one process.

    python benchmarks/scan_speed.py [--positions 16384] [--dim 256] [--heads 8] [--rows 1] [--device cpu]
                                    [--repeats 31] [--json FILE]

A copy reads and writes each byte once, as the forward scan must. `copy_` and the loops write to memory that is there;
`clone` and the ops allocate theirs, and fresh pages can cost more than all the rest. Times are medians in milliseconds,
the other columns their ratios. The prefix softmax mean is the scan with the gates that it needs. On a GPU, kernels take
the place of loops, and each time ends when the GPU is done.
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

from longspan.machine.environment import environment
from longspan.ops import scan
from longspan.ops.pooling import prefix_softmax_mean
from longspan.ops.scan import numba


def operations(rows: int, positions: int, dim: int, heads: int) -> dict[str, Callable[[], Any]]:
    """Return what is timed, by name."""
    torch.manual_seed(0)
    values = torch.randn(rows, positions, heads, dim // heads)
    logits, initial = torch.randn(rows, positions, heads), torch.zeros(rows, heads, dim // heads)
    gates, _ = scan.softmax_gates(logits)
    per_channel = gates.unsqueeze(-1).expand_as(values).contiguous()
    outputs, final = scan.lerp_scan(values, gates, initial)
    target, grad = torch.empty_like(values), torch.randn_like(values)
    inputs = [values.clone().requires_grad_(), logits.clone().requires_grad_()]

    def loops(gates: torch.Tensor) -> tuple[Callable[[], Any], Callable[[], Any]]:
        grads = [torch.empty_like(x) for x in (values, gates, initial)]
        forward = [x.numpy() for x in (values, gates, initial, target, torch.empty_like(final))]
        backward = [x.numpy() for x in (grad, final, values, gates, initial, outputs, *grads)]
        return lambda: numba.lerp_forward(*forward), lambda: numba.lerp_backward(*backward)

    timed: dict[str, Callable[[], Any]] = {"copy_": lambda: target.copy_(values)}
    if values.device.type == "cpu":
        timed["loop forward"], timed["loop backward"] = loops(gates)
        by_channel = loops(per_channel)
        timed["loop forward, gate per channel"], timed["loop backward, gate per channel"] = by_channel
    return {
        **timed,
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
            scan.lerp_scan_operator,
            scan.lerp_scan_gradient,
            scan.softmax_gates_operator,
            scan.softmax_gates_gradient,
        ):
            stack.enter_context(each.definition.set_kernel_enabled(torch.get_default_device().type, enabled=False))
        operation()


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--positions", type=int, default=16384)
    parser.add_argument("--dim", type=int, default=256)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--rows", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=31, help="timed runs of each operation")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    size = (arguments.rows, arguments.positions, arguments.dim)
    with torch.device(arguments.device):
        result = medians(operations(*size, arguments.heads), arguments.repeats)
    copy, forward = result["copy_"], result["lerp_scan forward"]
    print(
        tabulate(
            [
                [name, milliseconds, milliseconds / copy, milliseconds / forward]
                for name, milliseconds in result.items()
            ],
            [" x ".join(map(str, size)) + " float32", "ms", "of copy_", "of lerp_scan forward"],
            floatfmt=".2f",
        )
    )
    if arguments.json:
        arguments.json.write_text(json.dumps({"result": result, "environment": environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
