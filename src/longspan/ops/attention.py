"""Softmax attention of queries over keys, with this project's common rules for masks and empty rows."""

from contextlib import nullcontext
from typing import Any

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from longspan.errors import UserError
from longspan.ops.counts import counting, log_counts, present
from longspan.ops.execution import by_hand, on_cpu, transformed, without_autocast
from longspan.ops.scan import FLOOR, accumulation_dtype

# Scores per row and head up to which plain products are faster on a CPU than the fused kernel, which calls the matrix
# library once per tile: with MKL's products, and with oneDNN's or in half precision, where calls take much longer
# (benchmarks/short_attention.py).
_FEW, _MORE = 32 * 32, 128 * 128
# Keys of half precision up to which it pays to convert them.
_CONVERTED = 1024


def attention(
    query: Float[Tensor, "b h n e"],
    key: Float[Tensor, "b h m e"],
    value: Float[Tensor, "b h m v"],
    mask: Shaped[Tensor, "b m"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "b h n v"]:
    """Return softmax(QKᵀ/√e)V over the keys where `mask` is True, or as often as it counts them (`ops.counts`).

    Causal means that the last query sees every key and each earlier query one fewer. Queries are aligned to the bottom
    right, so that fewer queries than keys continue a sequence. Keys and values may come from another sequence, and
    values may have another width. A query that sees no key gives zeros. Cost: n·m·(e + v).
    """
    if counting(mask):
        return attention(*counted(query, key, value, mask), causal)
    n, m = query.shape[2], key.shape[2]
    if mask is None and (not causal or n in (1, m)):
        return scaled_products(query, key, value, causal=causal and n > 1)
    visible = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=query.device)
    if mask is not None:
        visible = mask[:, None, None, :]
    if causal and n > 1:
        visible = visible & _earlier(n, m, query)
    # A row without keys is NaN in some kernels: let it see everything, then set it to zero.
    sees = visible.any(-1, keepdim=True)
    return scaled_products(query, key, value, visible | ~sees) * sees


def counted(
    query: Float[Tensor, "b h n e"], key: Float[Tensor, "b h m e"], value: Tensor, mask: Float[Tensor, "b m"]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the queries and keys with one channel more, in which scores gain the logarithm of each key's count.

    So any engine of attention counts them. Values and a mask of booleans are returned, too.
    """
    wider = query.shape[3] + 1
    real = present(mask)
    counts = torch.where(real, log_counts(mask), 0).to(key.dtype)[:, None, :, None].expand(-1, key.shape[1], -1, 1)
    one = query.new_full((1, 1, 1, 1), wider**0.5).expand(*query.shape[:3], 1)
    query = torch.cat((query * (wider / (wider - 1)) ** 0.5, one), 3)
    return query, torch.cat((key, counts), 3), value, real


def scaled_products(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Return `torch.nn.functional.scaled_dot_product_attention`, by the fastest way for the shapes.

    A `mask` of booleans or biases has the shape (b or 1, h or 1, n or 1, m). Every query must see a key.
    """
    n, m = query.shape[2], key.shape[2]
    if on_cpu(query) and by_hand() and _few(n, m, query.dtype):
        return _in_products(query, key, value, _earlier(n, m, query) if causal else mask)
    if mask is not None:
        mask = mask.expand(-1, -1, n, m)
    # The fused kernels know one backward pass and no other derivative.
    with sdpa_kernel(SDPBackend.MATH) if transformed() else nullcontext():
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=causal)


def _few(n: int, m: int, dtype: torch.dtype) -> bool:
    """Return whether plain products are the faster way on a CPU, from the numbers of queries and keys."""
    if dtype in (torch.float32, torch.float64):
        # As the kernel decides: "medium" precision, and a processor with AVX-512.
        backend: Any = torch.backends.mkldnn
        onednn = dtype == torch.float32 and backend.matmul.fp32_precision == "bf16"
        return n * m <= (_MORE if onednn and torch.ops.mkldnn._is_mkldnn_bf16_supported() else _FEW)
    return n * m <= _MORE and m <= _CONVERTED


def _in_products(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    exact, dtype = accumulation_dtype(value.dtype), value.dtype
    with without_autocast(query):
        query, key, value = (x.to(exact) for x in (query / query.shape[3] ** 0.5, key, value))
        scores = query @ key.mT
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        return (scores.softmax(-1) @ value).to(dtype)


def _earlier(n: int, m: int, query: Tensor) -> Tensor:
    """Mask of the m keys that each of n queries may see, (n, m): the last one all of them."""
    return torch.ones(n, m, dtype=torch.bool, device=query.device).tril(m - n)


def attention_weights(
    query: Float[Tensor, "b h n e"], key: Float[Tensor, "b h m e"], mask: Shaped[Tensor, "b m"] | None = None
) -> Float[Tensor, "b h n m"]:
    """Return softmax(QKᵀ/√e) over the keys where `mask` is True, the weights of `attention`, in at least float32.

    A query that sees no key gives zeros. Cost: n·m·e, and it does form all n·m of them.
    """
    exact = accumulation_dtype(query.dtype)
    with without_autocast(query):
        scores = query.to(exact) @ key.to(exact).mT / query.shape[3] ** 0.5
    if mask is None:
        return scores.softmax(-1)
    if counting(mask):
        scores = scores + log_counts(mask).to(exact)[:, None, None, :]
    visible = present(mask)[:, None, None, :]
    return scores.masked_fill(~visible, FLOOR).softmax(-1) * visible


def attention_naive(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None, causal: bool = False
) -> Tensor:
    """Compute `attention` query by query over the keys each may see."""
    n, m = query.shape[2], key.shape[2]
    out = query.new_zeros(*query.shape[:3], value.shape[3])
    for row in range(query.shape[0]):
        for i in range(n):
            visible = torch.ones(m, dtype=torch.bool) if mask is None else mask[row].clone()
            if causal:
                visible[i + m - n + 1 :] = False
            if visible.any():
                scores = query[row, :, i : i + 1] @ key[row][:, visible].transpose(1, 2) / query.shape[3] ** 0.5
                out[row, :, i] = (scores.softmax(-1) @ value[row][:, visible])[:, 0]
    return out


def check_context(document_ids: Tensor | None, context: Tensor | None, context_mask: Tensor | None) -> None:
    """Raise UserError unless the request for cross attention is possible: a context, and one document per row."""
    if context is None:
        if context_mask is not None:
            raise UserError("expected a context with context_mask, got the mask alone; also pass context=...")
        return
    if document_ids is not None:
        raise UserError(
            "expected one document per row with a context, got packed documents in document_ids; call once per "
            "document, or pad each to its own row."
        )


def attended_mask(
    x: Float[Tensor, "b n d"], mask: Shaped[Tensor, "b n"] | None, context_mask: Shaped[Tensor, "b m"] | None
) -> Bool[Tensor, "b n"] | None:
    """Return where outputs are not zero: at real positions whose row has a real position in the context."""
    mask = None if mask is None else present(mask)
    if context_mask is None:
        return mask
    some = present(context_mask).any(1, keepdim=True).expand(x.shape[:2])
    return some if mask is None else some & mask
