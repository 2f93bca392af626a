"""The sums of keys and values of linear attention, and what queries read from them, as operators.

`plain` has them in plain operations, for every device, and `numba` as compiled loops for a CPU. Tensors of operators
have heads after positions, (b, t, h, ...), which are those of a mixer without a copy.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from longspan.ops.execution import accumulation_dtype
from longspan.ops.linear_sums import plain
from longspan.ops.operators import empty, operator


def sums(key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Σ φ(k) vᵀ (b, h, e, v) and Σ φ(k) (b, h, e) over keys (b, h, m, e) where `mask` (b, m) is True."""
    value = value if value.dtype == key.dtype else value.to(accumulation_dtype(key.dtype))
    found: tuple[Tensor, Tensor] = sums_operator(key.transpose(1, 2), value.transpose(1, 2), _all_if_none(mask, key))
    return found


def answers(sums: Tensor, weights: Tensor, query: Tensor) -> Tensor:
    """Outputs of queries (b, h, n, e) from the sums, (b, h, n, v) in their type."""
    query = query if accumulation_dtype(query.dtype) == sums.dtype else query.to(sums.dtype)
    found: Tensor = read_operator(query.transpose(1, 2), sums, weights)[0]
    return found.transpose(1, 2)


def features(x: Tensor, mask: Tensor | None, shifted: bool) -> Tensor:
    """`plain.query_features` if `shifted`, otherwise `plain.key_features`, of a tensor on a CPU."""
    x = x.to(accumulation_dtype(x.dtype))
    found: Tensor = features_operator(x.transpose(1, 2), _all_if_none(mask, x), shifted)
    return found.transpose(1, 2)


def _all_if_none(mask: Tensor | None, x: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], 0, dtype=torch.bool) if mask is None else mask


def _real(mask: Tensor) -> Tensor | None:
    return mask[:, None, :, None] if mask.shape[1] else None


def _plain_features(x: Tensor, mask: Tensor, shifted: bool) -> Tensor:
    x = x.transpose(1, 2)
    return (plain.query_features(x) if shifted else plain.key_features(x, _real(mask))).transpose(1, 2)


@operator("longspan::linear_features", _plain_features, loops="features")
def features_operator(x: Tensor, mask: Tensor, shifted: bool) -> Tensor:
    return empty(x)


def _save_features(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _features_gradient(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
    (found,) = ctx.saved_tensors
    # The features are all that it needs, and it is that of any order.
    return gradient * found.clamp_max(1), None, None


features_operator.definition.register_autograd(_features_gradient, setup_context=_save_features)


def _flops(x: Sequence[int], other: Sequence[int], *_: Any) -> int:
    """A product of each feature with each column of the values."""
    b, t, h, e = x
    return 2 * b * t * h * e * other[3]


def _plain_sums(key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    return plain.sums(key.transpose(1, 2), value.transpose(1, 2), _real(mask), None)


@operator("longspan::linear_sums", _plain_sums, loops="sum_up", flops=_flops)
def sums_operator(key: Tensor, value: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    b, _, h, e = key.shape
    dtype = accumulation_dtype(key.dtype)
    return key.new_empty(b, h, e, value.shape[3], dtype=dtype), key.new_empty(b, h, e, dtype=dtype)


@sums_operator.gradient(("sums", "weights"), loops="sum_up_backward")
def sums_gradient(
    grad_sums: Tensor, grad_weights: Tensor, key: Tensor, value: Tensor, mask: Tensor
) -> tuple[Tensor, Tensor]:
    return empty(key), empty(value)


def _plain_read(query: Tensor, sums: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    query = query.transpose(1, 2)
    normaliser = plain.query_features(query) @ weights.unsqueeze(-1)
    return plain.answers(sums, weights, query, None).transpose(1, 2), normaliser.squeeze(-1).transpose(1, 2)


@operator("longspan::linear_read", _plain_read, loops="read", flops=_flops)
def read_operator(query: Tensor, sums: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Outputs of queries (b, t, h, v), and the normalisers (b, t, h)."""
    b, t, h, _ = query.shape
    return sums.new_empty(b, t, h, sums.shape[3]), sums.new_empty(b, t, h)


@read_operator.gradient(("out", "normaliser"), loops="read_backward")
def read_gradient(
    gradient: Tensor, query: Tensor, sums: Tensor, weights: Tensor, out: Tensor, normaliser: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return empty(query), empty(sums), empty(weights)
