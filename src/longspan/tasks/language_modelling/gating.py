"""Fitting the weights of a mixture's parts to documents that were held out: `fit_gate`."""

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.models.wide.language import Gate, log_weights

#: Steps of Adam with all tokens, and the rate of the first.
_STEPS, _RATE = 150, 0.02
#: Penalties, in nats for all tokens together, times the square of each weight: of most weights, and of those that read
#: the network's output, which is far longer than the rest of the evidence. Chosen on halves of validation splits.
_PENALTY, _PENALTY_OF_OUTPUTS = 10.0, 300.0


def fit_gate(gate: Gate, evidence: Float[Tensor, "n e"], parts: Float[Tensor, "n k"], outputs: int) -> None:
    """Fit a gate so that the mixture predicts these tokens best; the same for equal tokens.

    Args:
        gate: The gate, changed in place.
        evidence: What it reads at each token.
        parts: log p of each token in each part.
        outputs: How many of the last numbers of the evidence are the network's output.
    """
    evidence, parts = evidence.float(), parts.float()
    mean, deviation = evidence.mean(0), evidence.std(0, correction=0)
    deviation = torch.where(deviation > 1e-6, deviation, 1.0)
    standard = (evidence - mean) / deviation
    learned = [tensor.requires_grad_() for tensor in _started(gate, outputs)]
    inner, outer = learned[::2]
    optimizer = torch.optim.Adam(learned, _RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / _STEPS)))
    unchanged = [torch.zeros(gate.size), torch.ones(gate.size)]
    few = gate.size - outputs
    with torch.enable_grad():
        for _ in range(_STEPS):
            loss = mixed(standard, parts, [*unchanged, *learned]).mean()
            rest = _PENALTY * (inner[:, :few].square().sum() + outer.square().sum())
            loss = loss + (rest + _PENALTY_OF_OUTPUTS * inner[:, few:].square().sum()) / len(evidence)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    for buffer, tensor in zip(gate.buffers(), [mean, deviation, *learned], strict=True):
        buffer.copy_(tensor.detach())


def mixed(
    evidence: Float[Tensor, "n e"], parts: Float[Tensor, "n k"], tensors: Sequence[Tensor]
) -> Float[Tensor, " n"]:
    """Return the losses in nats of a mixture whose gate has these tensors."""
    return -(parts + log_weights(evidence, tensors)).logsumexp(-1)


def _started(gate: Gate, outputs: int) -> list[Tensor]:
    """Return the weights that fitting starts from: equal parts, and small random ones of all but the outputs."""
    random, few = torch.Generator().manual_seed(0), gate.size - outputs
    inner = torch.randn(gate.inner.shape, generator=random) / max(1, few) ** 0.5
    inner[:, few:] = 0
    return [inner, torch.zeros(len(inner)), torch.zeros(gate.outer.shape), torch.zeros(gate.parts)]
