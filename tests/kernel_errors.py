"""Largest rounding errors of linear attention and of a matrix per head, and of their gradients (`rounding`)."""

import math
from collections.abc import Callable
from typing import Any

import torch
from rounding import EXP, errors_of_noise, rounding
from torch import Tensor

from longspan.ops.delta import gated_delta_rule_naive
from longspan.ops.gated_linear import gated_linear_attention_naive
from longspan.ops.linear_sums import plain


def linear_attention_errors(tensors: list[Tensor], mask: Tensor, upstream: Tensor, causal: bool) -> list[Tensor]:
    """Of what queries read and of the gradients of queries, keys and values, all of one type; sums are in float32."""
    query, key, value = tensors
    dtype, (n, e), (m, v) = value.dtype, query.shape[2:], value.shape[2:]
    largest = math.ceil(max(x.abs().max().item() for x in (query, key)))
    query, key, value, towards = query.double(), key.double(), value.double().abs(), upstream.double().abs()
    queries, keys = plain.query_features(query), plain.key_features(key, mask[:, None, :, None])
    products = queries @ keys.mT
    total = (products.tril() if causal else products).sum(3, keepdim=True).clamp_min(plain.TINY)
    weights = (products.tril() if causal else products) / total
    out = weights @ value
    # Gradients of features: differences of products with values and with what is read.
    change = (towards @ value.mT + (towards * out).sum(3, keepdim=True)) / total
    change = change.tril() if causal else change
    magnitudes = [
        out,
        change @ keys * queries.clamp_max(1),
        change.mT @ queries * keys.clamp_max(1),
        weights.mT @ towards,
    ]
    # Two features, whose exponents are rounded, in a numerator and a normaliser, and sums over all dimensions.
    features = EXP + 2 + largest
    roundings = 2 * (2 * features + m + e) + n + v + 12
    return [rounding(roundings, x, torch.float32) + rounding(1, x, dtype) for x in magnitudes]


def fast_weights_errors(given: list[Any], upstream: list[Tensor], backwards: int, chunk: int = 1) -> list[float]:
    """Of `fast_weights` and its gradients, in float32: all operands, and matrices at each position, are rounded.

    Kernels take positions in chunks, the rounding of whose sums is that of each position.
    """
    e, v = given[0].shape[3], given[2].shape[3]

    def recurrence(rounded: Callable[[Tensor], Tensor]) -> list[Tensor]:
        leaves: list[Any] = [None if x is None else x.detach().double().requires_grad_() for x in given]
        sequences = [None if x is None else rounded(_forwards(x, backwards)).split(1, 2) for x in leaves[:-1]]
        state, out = leaves[-1], []
        for i in range(given[0].shape[2]):
            at: list[Any] = [*(x[i] for x in sequences if x is not None), rounded(state)]
            if given[3] is None:
                read, state = gated_linear_attention_naive(*at)
            else:
                read, state = gated_delta_rule_naive(*at)
            out.append(read)
        found = [_forwards(rounded(torch.cat(out, 2)), backwards), rounded(state)]
        return [*found, *torch.autograd.grad(found, [x for x in leaves if x is not None], upstream)]

    return errors_of_noise(recurrence, chunk + 2 * e + v + EXP + 12, torch.float32)


def _forwards(x: Tensor, backwards: int) -> Tensor:
    """With the positions of the last heads in reverse order; twice, it is x."""
    return torch.cat((x[:, : x.shape[1] - backwards], x[:, x.shape[1] - backwards :].flip(2)), 1)
