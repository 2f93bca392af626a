"""Speed of attention over edges against plain torch, interleaved in one process.

    python benchmarks/edges.py [--nodes 100000] [--edges 1000000] [--dim 64] [--heads 8] [--device cpu] [--repeats 9]
                               [--json FILE]

Edges join nodes drawn at random. "In order" means by target, then by source, as data sets are stored; other edges are
sorted in each call. "Plain torch" are the same operators with the kernels that every device has: until compiled loops
came, this was all there was. Times are medians in milliseconds. Before anything is timed, outputs and gradients of both
are compared, and both with dense masked softmax on a smaller graph.
"""

import argparse
import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate
from torch import Tensor
from turns import attend, medians

from longspan.machine.environment import environment
from longspan.ops.edges import (
    by_target,
    by_target_operator,
    edge_attention,
    edge_attention_gradient,
    edge_attention_operator,
)


def in_torch(operation: Callable[[], Any]) -> Any:
    """Run an operation with the kernels that every device has."""
    with ExitStack() as stack:
        for each in (edge_attention_operator, edge_attention_gradient, by_target_operator):
            stack.enter_context(each.definition.set_kernel_enabled(torch.get_default_device().type, enabled=False))
        return operation()


def graph(nodes: int, edges: int, dim: int, heads: int) -> tuple[list[Tensor], Tensor, Tensor]:
    torch.manual_seed(0)
    tensors = [torch.randn(nodes, heads, dim // heads).requires_grad_() for _ in range(3)]
    source, target = torch.randint(nodes, (2, edges))
    return tensors, source, target


def dense(query: Tensor, key: Tensor, value: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """Masked softmax over all nodes; edges that are given several times count as often."""
    times = torch.zeros(len(query), len(key)).index_put((target, source), torch.ones(len(source)), accumulate=True)
    scores = torch.einsum("the,she->hts", query, key) / query.shape[2] ** 0.5 + times.log()
    return torch.einsum("hts,she->the", scores.softmax(2).nan_to_num(0), value)


def check(nodes: int, edges: int, dim: int, heads: int, reference: Callable[..., Tensor]) -> None:
    """Compare outputs and gradients to float32 rounding: sums of tens of terms in another order."""
    tensors, source, target = graph(nodes, edges, dim, heads)
    probe = torch.randn_like(tensors[0])
    found = edge_attention(*tensors, source, target)
    wanted = reference(*tensors, source, target)
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    gradients = [torch.autograd.grad(one, tensors, probe) for one in (found, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=1e-4)


def operations(nodes: int, edges: int, dim: int, heads: int) -> dict[str, Callable[[], Any]]:
    """Return what is timed, by name."""
    tensors, source, target = graph(nodes, edges, dim, heads)
    probe = torch.randn_like(tensors[0])
    order = by_target(source, target, nodes, nodes)
    first, second = source[order], target[order]

    def attended(source: Tensor, target: Tensor, gradient: Tensor | None) -> Callable[[], Any]:
        return lambda: attend(lambda *given: edge_attention(*given, source, target), tensors, gradient)

    timed: dict[str, Callable[[], Any]] = {
        "sorting": lambda: by_target(source, target, nodes, nodes),
        "forward, in order": attended(first, second, None),
        "forward": attended(source, target, None),
        "forward and backward, in order": attended(first, second, probe),
        "forward and backward": attended(source, target, probe),
    }
    plain = {f"plain torch: {name}": (lambda run=run: in_torch(run)) for name, run in timed.items()}
    return timed | plain


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=100_000)
    parser.add_argument("--edges", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--heads", type=int, default=8)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repeats", type=int, default=9, help="timed runs of each operation")
    parser.add_argument("--json", type=Path, help="write the result here")
    arguments = parser.parse_args()
    size = (arguments.nodes, arguments.edges, arguments.dim, arguments.heads)
    with torch.device(arguments.device):
        check(500, 5000, arguments.dim, arguments.heads, dense)
        check(*size, lambda *given: in_torch(lambda: edge_attention(*given)))
        result = medians(operations(*size), arguments.repeats)
    rows = [
        [name, result[name], result[f"plain torch: {name}"], result[f"plain torch: {name}"] / result[name]]
        for name in result
        if not name.startswith("plain torch")
    ]
    heading = f"{arguments.nodes:,} nodes, {arguments.edges:,} edges, dim {arguments.dim}, {arguments.heads} heads"
    print(tabulate(rows, [heading, "ms", "plain torch, ms", "times as fast"], floatfmt=".1f"))
    if arguments.json:
        arguments.json.write_text(json.dumps({"result": result, "environment": environment()}, indent=2) + "\n")


if __name__ == "__main__":
    main()
