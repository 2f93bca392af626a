"""The features of linear attention, sums of keys and values, and what queries read, in plain operations."""

from typing import Any

from torch import Tensor
from torch.autograd import Function

from longspan.ops.execution import by_hand
from longspan.ops.rotary import rotated
from longspan.ops.scan import accumulation_dtype

# Sums of weights below this, for a query whose largest feature is at least one, count as zero.
TINY = 1e-20


def sums(key: Tensor, value: Tensor, real: Tensor | None, numbers: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return Σ φ(k) vᵀ (b, h, e, v) and Σ φ(k) (b, h, e)."""
    keys = key_features(key, real)
    return rotate(keys, numbers).mT @ value.to(keys.dtype), keys.sum(2)


def answers(sums: Tensor, weights: Tensor, query: Tensor, numbers: Tensor | None) -> Tensor:
    """Outputs of each query from the sums."""
    queries = query_features(query)
    return rotate(queries, numbers) @ sums * inverse(queries @ weights.unsqueeze(-1))


def rotate(features: Tensor, numbers: Tensor | None) -> Tensor:
    return features if numbers is None else rotated(features, numbers.squeeze(-1))


def query_features(query: Tensor) -> Tensor:
    """Return φ of each query, divided by its largest feature if that is below one; the normaliser cancels it."""
    query = query.to(accumulation_dtype(query.dtype))
    # φ is exp below zero, so the division is a shift, which the gradient ignores.
    return features(query - query.detach().amax(-1, keepdim=True).clamp_max(0))


def key_features(key: Tensor, real: Tensor | None) -> Tensor:
    found = features(key.to(accumulation_dtype(key.dtype)))
    return found if real is None else found * real.to(found.dtype)


def features(x: Tensor) -> Tensor:
    """Return elu(x) + 1, written so that negative numbers keep their digits: elu(-20) + 1 is zero in float32."""
    if not by_hand():
        # Not clamped: the largest feature of a query is often at zero, where releases of PyTorch differ.
        return x.masked_fill(x > 0, 0).exp() + x.relu()
    found: Tensor = _Features.apply(x)
    return found


class _Features(Function):
    """exp(x) below zero, x + 1 above; the features are all that its gradient needs: min(features, 1)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        features = x.clamp_max(0).exp_().add_(x.relu())
        ctx.save_for_backward(features)
        return features

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (features,) = ctx.saved_tensors
        return gradient * features.clamp_max(1)


def inverse(normaliser: Tensor) -> Tensor:
    return normaliser.clamp_min(TINY).reciprocal()


def normaliser_gradient(gradient: Tensor, out: Tensor, normaliser: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient of the normaliser, given that of `answers`, and the inverse of the normaliser."""
    divisor = inverse(normaliser)
    return -(gradient * out).sum(-1) * divisor * (normaliser >= TINY), divisor
