"""Softmax attention between few tokens on a CPU: the fused kernel beside plain products, interleaved in one process.

    python benchmarks/short_attention.py [--dtype bfloat16] [--highest] [--repeats 30]

Products in float32 are by oneDNN where that is exact, as on the command line; `--highest` leaves them to MKL. Each row
has the median milliseconds of a core, forward and backward, or of a decoding step (one query) without gradients. The
last column says which of the two longspan takes.
"""

import argparse
import functools
import statistics
import time
from collections.abc import Callable
from unittest import mock

import torch

from longspan.cli import use_fastest_exact_products
from longspan.ops.attention import _few, attention

#: Rows, queries, keys; of 4 heads. The first is a batch of captions.
SHAPES = [(141, 14, 14), (64, 32, 32), (32, 64, 64), (16, 128, 128), (8, 256, 256)]
STEPS = [(32, 1, 14), (32, 1, 128), (8, 1, 1024), (8, 1, 4096), (8, 1, 16384)]


def forward_and_backward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor) -> None:
    out = attention(query, key, value, mask)
    if out.requires_grad:
        out.sum().backward()


def seconds(function: Callable[[], object]) -> float:
    start = time.process_time()
    function()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(allow_abbrev=False, description=__doc__.partition("\n")[0])
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], default="float32")
    parser.add_argument("--highest", action="store_true")
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--width", type=int, default=48, help="of a head")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    if not arguments.highest:
        print("float32 products:", use_fastest_exact_products())
    print("| rows | queries | keys | fused, ms | products, ms | times as fast | taken |")
    print("|---|---|---|---|---|---|---|")
    for b, n, m in [*SHAPES, *STEPS]:
        dtype = getattr(torch, arguments.dtype)
        query, key, value = (
            torch.randn(b, 4, size, arguments.width, dtype=dtype, requires_grad=n > 1) for size in (n, m, m)
        )
        mask = torch.arange(m) < torch.randint(max(1, m - 3), m + 1, (b, 1))

        work = functools.partial(forward_and_backward, query, key, value, mask)
        taken = "products" if _few(n, m, dtype) else "fused"
        times: dict[bool, list[float]] = {False: [], True: []}
        for repeat in range(arguments.repeats + 3):
            for few, found in times.items():
                with mock.patch("longspan.ops.attention._few", return_value=few):
                    milliseconds = 1000 * seconds(work)
                if repeat >= 3:
                    found.append(milliseconds)
        fused, products = map(statistics.median, times.values())
        print(f"| {b} | {n} | {m} | {fused:.2f} | {products:.2f} | {fused / products:.1f} | {taken} |", flush=True)


if __name__ == "__main__":
    main()
