"""Pooling of a sequence that comes in segments, in constant memory: `StreamedPooling`."""

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.models.heads.classification import Pooling


class StreamedPooling:
    """`Pooling` for a sequence whose segments are added one after the other.

    A softmax-weighted mean has the state (m, s, a): the largest logit, Σ exp(z - m), and Σ exp(z - m) x.

    Args:
        pooling: the pooling of a model.
    """

    def __init__(self, pooling: Pooling) -> None:
        self.pooling = pooling
        self._count = 0
        self._first: Tensor | None = None
        self._sum: Tensor | float = 0.0
        self._largest: Tensor | None = None
        self._logit = torch.full((1, 1), -torch.inf)
        self._weight: Tensor | float = 0.0
        self._weighted: Tensor | float = 0.0

    def add(self, x: Float[Tensor, "1 t d"]) -> None:
        """Add the next positions, at least one."""
        self._count += x.shape[1]
        if self.pooling.name == "attention":
            self._add_weighted(x)
            return
        if self._first is None:
            self._first = x[:, 0].clone()
        self._sum = self._sum + x.double().sum(1)
        largest = x.max(1).values
        self._largest = largest if self._largest is None else torch.maximum(self._largest, largest)

    def _add_weighted(self, x: Tensor) -> None:
        logits = self.pooling.score(torch.tanh(self.pooling.hidden(x))).double()
        top = torch.maximum(self._logit.to(logits), logits.max(1).values)
        kept, weights = (self._logit.to(logits) - top).exp(), (logits - top.unsqueeze(1)).exp()
        self._weight = kept * self._weight + weights.sum(1)
        self._weighted = kept * self._weighted + (weights * x).sum(1)
        self._logit = top

    def result(self) -> Float[Tensor, "1 p"]:
        """Return the pooled vector of all positions so far, float64. Raises ValueError if there are none."""
        if not self._count:
            raise ValueError("expected positions to pool, got none")
        if self.pooling.name == "attention":
            return torch.as_tensor(self._weighted / self._weight)
        assert self._first is not None
        assert self._largest is not None
        mean = torch.as_tensor(self._sum) / self._count
        parts = {"mean": [mean], "max": [self._largest], "mean+max": [mean, self._largest], "first": [self._first]}
        return torch.cat([part.double() for part in parts[self.pooling.name]], 1)
