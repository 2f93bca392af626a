"""Fitting the weights of a mixture's parts to documents that were held out: `fit_gate`."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.models.wide.language import Gate, log_weights

#: Steps of Adam with all tokens, and the rate of the first.
_STEPS, _RATE = 150, 0.02
#: What pulls weights towards equal ones, in nats for all tokens together, times the square of each.
_PENALTY = 2.0


def fit_gate(gate: Gate, evidence: Float[Tensor, "n e"], parts: Float[Tensor, "n k"]) -> None:
    """Fit a gate so that the mixture predicts these tokens best; the same for equal tokens.

    Args:
        gate: The gate, changed in place.
        evidence: What it reads at each token.
        parts: log p of each token in each part.
    """
    evidence, parts = evidence.float(), parts.float()
    mean, deviation = evidence.mean(0), evidence.std(0, correction=0)
    tensors = [mean, torch.where(deviation > 1e-6, deviation, 1.0), *_started(gate)]
    learned = [tensor.requires_grad_() for tensor in tensors[2:]]
    optimizer = torch.optim.Adam(learned, _RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / _STEPS)))
    with torch.enable_grad():
        for _ in range(_STEPS):
            loss = mixed(evidence, parts, tensors).mean()
            loss = loss + _PENALTY / len(evidence) * sum(tensor.square().sum() for tensor in learned[::2])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    for buffer, tensor in zip(gate.buffers(), tensors, strict=True):
        buffer.copy_(tensor.detach())


def mixed(
    evidence: Float[Tensor, "n e"], parts: Float[Tensor, "n k"], tensors: Sequence[Tensor]
) -> Float[Tensor, " n"]:
    """Return the losses in nats of a mixture whose gate has these tensors."""
    return -(parts + log_weights(evidence, tensors)).logsumexp(-1)


def _started(gate: Gate) -> list[Tensor]:
    """Return the weights that fitting starts from: small random ones, and equal parts."""
    random = torch.Generator().manual_seed(0)
    inner = torch.randn(gate.inner.shape, generator=random) / gate.size**0.5
    return [inner, torch.zeros(len(inner)), torch.zeros(gate.outer.shape), torch.zeros(gate.parts)]
