"""Muon, an optimizer of matrices whose steps are orthogonal, and which matrices of a model it takes."""

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from longspan.models.backbone import Backbone

# Coefficients of Jordan et al. 2024: five steps bring singular values from 0.01 to 1 near 1, most between 0.7 and 1.2.
COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
# The root of the mean square of a step, for a learning rate of 1. That of steps of Adam is about 0.2 (Liu et al. 2025);
# four times as much learned faster than that and twice as much (translation of captions, LOG.md).
SIZE = 0.8


class Muon(Optimizer):
    """Momentum whose steps are orthogonal: all directions of a matrix move equally far.

    For each matrix W (m, n) with the gradient G:
        B = μ B + (1 - μ) G
        O = U Vᵀ, nearly, where U S Vᵀ is the singular value decomposition of (1 - μ) G + μ B
        W = W - lr · (0.8 √max(m, n) · O + λ W)

    O comes from `ITERATIONS` Newton-Schulz iterations (`orthogonal`). Learning rates and weight decays of AdamW serve.

    Cost: about 10·min(m, n)·(2·m·n + min(m, n)²) operations for each step, whatever the size of the batch; for layers
        of width d with batches of T positions, about 5·d/T of the cost of the model
    State: one number per weight
    Source: Jordan et al. 2024, https://kellerjordan.github.io/posts/muon; the size of steps: Liu et al. 2025, "Muon is
        scalable for LLM training", https://arxiv.org/abs/2502.16982
    Deviations: matrices of equal size are processed together. On CPUs, products are of float32; `torch.optim.Muon`
        computes them in bfloat16, which few CPUs do fast.

    Args:
        params: matrices, or parameter groups of them.
        lr: learning rate.
        weight_decay: λ.
        momentum: μ.
    """

    def __init__(self, params: Any, *, lr: float, weight_decay: float = 0.0, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step with the gradients that the matrices have; there is no closure."""
        for group in self.param_groups:
            alike: dict[tuple[int, ...], list[tuple[Tensor, Tensor]]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    alike.setdefault(weight.shape, []).append((weight, self._moved(weight, group["momentum"])))
            for shape, those in alike.items():
                steps = orthogonal(torch.stack([step for _, step in those]))
                size = SIZE * math.sqrt(max(shape))
                for (weight, _), step in zip(those, steps, strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    weight.add_(step.to(weight.dtype), alpha=-group["lr"] * size)

    def _moved(self, weight: Tensor, momentum: float) -> Tensor:
        """Return the mean of a weight's gradients, the newest counted once more (Nesterov)."""
        state = self.state[weight]
        if not state:
            state["mean"] = torch.zeros_like(weight)
        assert weight.grad is not None
        state["mean"].lerp_(weight.grad, 1 - momentum)
        return torch.lerp(weight.grad, state["mean"], momentum)


def orthogonal(matrices: Tensor) -> Tensor:
    """Return UVᵀ, nearly, for matrices U S Vᵀ, (b, m, n); a matrix of zeros stays one.

    In float32, and on GPUs in bfloat16.
    """
    a, b, c = COEFFICIENTS
    x = matrices.to(torch.float32 if matrices.device.type == "cpu" else torch.bfloat16)
    tall = x.shape[1] > x.shape[2]
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    for _ in range(ITERATIONS):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def matrices_of(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights of the dense layers in a model's layers that are trained.

    Embeddings, heads, biases, norms, convolutions and recurrent weights are not among them.
    """
    backbones = (module for module in model.modules() if isinstance(module, Backbone))
    dense = (module for body in backbones for module in body.blocks.modules() if isinstance(module, nn.Linear))
    weights = {id(layer.weight): layer.weight for layer in dense if layer.weight.requires_grad}
    return list(weights.values())
