"""Counts of operations: PyTorch's own, plus those that it misses."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode


def count_operations(call: Callable[[], Any]) -> int:
    """Number of multiplications and additions of the matrix products of `call()`."""
    # On a CPU PyTorch's counter knows neither its fused attention nor oneDNN's LSTM; triangular systems nowhere.
    known = {torch.ops.aten.mkldnn_rnn_layer: _lstm, torch.ops.aten.linalg_solve_triangular: _solve}
    with FlopCounterMode(display=False, custom_mapping=known) as counter, sdpa_kernel(SDPBackend.MATH):
        call()
    return counter.get_total_flops()


def _lstm(x: Sequence[int], weight: Sequence[int], recurrent_weight: Sequence[int], *_: object, **__: object) -> int:
    products = weight[0] * weight[1] + recurrent_weight[0] * recurrent_weight[1]
    return 2 * x[0] * x[1] * products


def _solve(matrix: Sequence[int], given: Sequence[int], *_: object, **__: object) -> int:
    return math.prod(given) * matrix[-1]
