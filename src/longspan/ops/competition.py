"""Competition of positions by softmax, and the algebra of heads on what it pools: thin products (`ops.reads`)."""

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from longspan.ops.counts import counting, log_counts, present
from longspan.ops.scan import FLOOR, accumulation_dtype


def position_softmax(
    logits: Float[Tensor, "b h t"], mask: Shaped[Tensor, "b t"] | None = None
) -> Float[Tensor, "b h t"]:
    """Return the softmax of `logits` over positions, in at least float32; counts of `mask` multiply weights.

    Positions where `mask` is False weigh exactly zero; a row without any real position has only zeros.
    """
    logits = logits.to(accumulation_dtype(logits.dtype))
    if mask is None:
        return logits.softmax(2)
    keep = present(mask).unsqueeze(1)
    if counting(mask):
        logits = logits + log_counts(mask).to(logits.dtype).unsqueeze(1)
    return logits.masked_fill(~keep, FLOOR).softmax(2) * keep


def project_heads(
    pooled: Float[Tensor, "b h d"], weight: Float[Tensor, "out d"], bias: Float[Tensor, " out"] | None = None
) -> Float[Tensor, "b h e"]:
    """Return each head's row times that head's part of a projection, e = out / h rows of `weight`. Cost: out·d."""
    h = pooled.shape[1]
    projected = torch.einsum("bhd,hed->bhe", pooled, weight.unflatten(0, (h, -1)))
    return projected if bias is None else projected + bias.view(h, -1)


def against_keys(query: Float[Tensor, "b h e"], weight: Float[Tensor, "out d"]) -> Float[Tensor, "b h d"]:
    """Return rows r with r·x = query·(weight x)_h, so that keys need not be formed. Cost: out·d."""
    return torch.einsum("bhe,hed->bhd", query, weight.unflatten(0, (query.shape[1], -1)))


def hand_out(
    weights: Float[Tensor, "b h t"], answers: Float[Tensor, "b h e"], weight: Float[Tensor, "out d"] | None
) -> Float[Tensor, "b t out"]:
    """Return `weight` times the concatenation over heads of weights_t·answers, d = h·e; no `weight` is the identity.

    Cost: t·h·out + out·d.
    """
    h = answers.shape[1]
    if weight is None:
        own = torch.eye(h, dtype=answers.dtype, device=answers.device).unsqueeze(-1)
        rows = (answers.unsqueeze(2) * own).flatten(2)
    else:
        rows = torch.einsum("bhe,ohe->bho", answers, weight.unflatten(1, (h, -1)))
    return weights.to(rows.dtype).mT @ rows
