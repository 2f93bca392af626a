"""Cross-entropy of an affine map of many outputs, such as the logits of a vocabulary: `linear_cross_entropy`.

A few rows at a time, the forward pass computes logits, losses and gradients, while the logits are in the cache. No
logits are kept, and none are computed twice: three products in all. The gradients are those of a sum of all losses. The
backward pass scales them where all losses have the same upstream gradient, as they do in a mean; otherwise it computes
them again. CPU milliseconds, forward and backward, for `(2048, 256)` float32 (one thread, Zen 5, shared machine):

                                                       10,000 outputs   30,000 outputs
    this module                                                   361            1,107
    all logits at once, `cross_entropy(linear(...))`              504            1,425
    parts, computed again in the backward pass                    670            1,972
    `torch.nn.functional.linear_cross_entropy` in chunks          483            1,753
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd import Function
from torch.nn.functional import cross_entropy, linear

from longspan.ops.execution import (
    by_hand,
    differentiated_further,
    on_cpu,
    plain_gradients,
    several_at_once,
    without_autocast,
)
from longspan.ops.pooling import accumulation_dtype

#: Logits in memory at a time, and fewest rows of them: products of fewer rows are slow.
_LOGITS, _ROWS = 1 << 21, 128


def linear_cross_entropy(
    hidden: Float[Tensor, "n d"],
    weight: Float[Tensor, "v d"],
    bias: Float[Tensor, " v"] | None,
    targets: Int[Tensor, " n"],
    ignored: int,
) -> Float[Tensor, " n"]:
    """Return -log softmax(W h + b)[target] in nats of each row, in at least float32; 0 where the target is `ignored`.

    Autocast applies to the products, as it does to `linear`. Cost: 2·n·d·v, and twice as much for gradients.
    """
    if not (by_hand() and on_cpu(hidden) and torch.is_grad_enabled()):
        return _plain(hidden, weight, bias, targets, ignored)
    device = hidden.device.type
    if torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
    losses: Tensor = _ByHand.apply(hidden, weight, bias, targets, ignored)
    return losses


def _plain(hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignored: int) -> Tensor:
    logits = linear(hidden, weight, bias)
    exact = logits.to(accumulation_dtype(logits.dtype))
    return cross_entropy(exact, targets, ignore_index=ignored, reduction="none")


class _ByHand(Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, ignored: int) -> Tensor:
        exact = accumulation_dtype(hidden.dtype)
        losses = hidden.new_zeros(len(hidden), dtype=exact)
        for_hidden, for_weight, for_bias, *_ = ctx.needs_input_grad
        grad_hidden = torch.empty_like(hidden) if for_hidden else None
        grad_weight = torch.zeros_like(weight, dtype=exact) if for_weight else None
        grad_bias = torch.zeros_like(bias, dtype=exact) if bias is not None and for_bias else None
        rows = max(_ROWS, _LOGITS // len(weight))
        with without_autocast(hidden):
            for start in range(0, len(hidden), rows):
                part = slice(start, start + rows)
                inputs, wanted = hidden[part], targets[part]
                logits = linear(inputs, weight, bias).to(exact)
                largest, where = logits.max(1, keepdim=True)
                known = (wanted != ignored).unsqueeze(1)
                wanted = wanted.unsqueeze(1).where(known, 0)
                own = logits.gather(1, wanted)
                shares = logits.softmax(1)
                # The largest share is at least 1/v, so that its logarithm is exact however unlikely the target is.
                losses[part] = ((largest - shares.gather(1, where).log() - own) * known)[:, 0]
                shares.scatter_add_(1, wanted, torch.full_like(own, -1))
                shares *= known
                change = shares.to(hidden.dtype)
                if grad_hidden is not None:
                    torch.mm(change, weight, out=grad_hidden[part])
                if grad_weight is not None:
                    _add_product(grad_weight, change.mT, inputs)
                if grad_bias is not None:
                    grad_bias += shares.sum(0)
        ctx.ignored = ignored
        ctx.save_for_backward(hidden, weight, bias, targets, grad_hidden, grad_weight, grad_bias)
        return losses

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, bias, targets, *found = ctx.saved_tensors
        plain, upstream = differentiated_further() or several_at_once(gradient), gradient[targets != ctx.ignored]
        if plain or not bool((upstream == upstream[:1]).all()):
            inputs = (hidden, weight, bias, targets, ctx.ignored)
            with without_autocast(hidden):
                return plain_gradients(_plain, inputs, (gradient,))
        scale = upstream[0] if len(upstream) else gradient.new_zeros(())
        types = (hidden.dtype, weight.dtype, hidden.dtype)
        scaled = [None if each is None else (each * scale).to(dtype) for each, dtype in zip(found, types, strict=True)]
        return *scaled, None, None


def _add_product(total: Tensor, one: Tensor, other: Tensor) -> None:
    """Add a product to a total that may be of a wider type."""
    if total.dtype == one.dtype:
        total.addmm_(one, other)
    else:
        total += one @ other
