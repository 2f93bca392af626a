"""The optimizers of a training run: one for each kind of parameter, behind one interface."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from transformers import TrainingArguments

from longspan.models.backbone import Backbone
from longspan.models.model import LongspanPreTrainedModel
from longspan.training.sharding import local_of, part_of, whole_of, zeros_by_row


class Joined(Optimizer):
    """Several optimizers as one, each with parameters of its own.

    They share their parameter groups with this one, so that schedules reach all of them. What else the first one has,
    such as the modes of schedule-free optimizers, is found here too.

    Args:
        parts: optimizers by name, under which checkpoints have their states.
    """

    def __init__(self, parts: Mapping[str, Optimizer]) -> None:
        self.parts = dict(parts)
        super().__init__([group for part in self.parts.values() for group in part.param_groups], {})
        self._share()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step with each."""
        for part in self.parts.values():
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict.keys() != self.parts.keys():
            raise ValueError(f"expected the states of {', '.join(self.parts)}, got those of {', '.join(state_dict)}")
        for name, part in self.parts.items():
            part.load_state_dict(state_dict[name])
        self._share()

    def _share(self) -> None:
        """Have the groups of all parts, which loading replaces."""
        self.param_groups = [group for part in self.parts.values() for group in part.param_groups]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "parts":
            raise AttributeError(name)
        return getattr(next(iter(self.parts.values())), name)


def take(optimizer: Optimizer, weights: Sequence[Tensor]) -> None:
    """Take weights out of an optimizer, so that another one can have them."""
    taken = {id(weight) for weight in weights}
    for group in optimizer.param_groups:
        group["params"] = [each for each in group["params"] if id(each) not in taken]


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
    Deviations: `torch.optim.Muon` has the same formula, with 4 lr and λ/4, but all products in bfloat16. Without
        instructions for it (AVX2), one of 256 x 256 takes 30 times as long as in float32 on CPUs, which is used here.
        Matrices of equal size are processed together. Those that are divided among processes are gathered for it.

    Args:
        params: matrices, or parameter groups of them; weights of convolutions, (m, ...), are matrices (m, n).
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
                    step = whole_of(self._moved(weight, group["momentum"])).flatten(1)
                    alike.setdefault(step.shape, []).append((weight, step))
            for shape, those in alike.items():
                steps = orthogonal(torch.stack([step for _, step in those]))
                size = SIZE * math.sqrt(max(shape))
                for (weight, _), step in zip(those, steps, strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"])
                    step = part_of(step.view(weight.shape).to(weight.dtype), weight)
                    weight.add_(step, alpha=-group["lr"] * size)

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


def matrices_of(model: nn.Module) -> list[Tensor]:
    """Return the weights of the dense layers in a model's layers, and of convolutions over two dimensions.

    Those that are trained; embeddings, heads, biases, norms, other convolutions and recurrent weights are not among
    them.
    """
    backbones = (module for module in model.modules() if isinstance(module, Backbone))
    dense = [module.weight for body in backbones for module in body.blocks.modules() if isinstance(module, nn.Linear)]
    dense += [module.weight for module in model.modules() if isinstance(module, nn.Conv2d)]
    weights = {id(weight): weight for weight in dense if weight.requires_grad}
    return list(weights.values())


class RowwiseAdam(Optimizer):
    """Adam without momentum, one second moment for each row, and steps for the rows that have a gradient.

    For each row r with the gradient g, of width d, in the c-th step that it has one:
        v_r = β v_r + (1 - β) |g|²/d
        w_r = w_r - lr · g / (√(v_r / (1 - β^c)) + ε)

    Momentum would move rows that the step did not read. As c counts the row's own steps, a rare row's first step is as
    long as a frequent one's, unlike in `torch.optim.SparseAdam`. State: two numbers per row. Rows are not decayed.

    The rows of a sparse gradient are those that were read, even with zero gradients. Those of a dense one, as on GPUs,
    are those that are not zero; all rows are computed with, so that the host need not wait for their numbers.

    Args:
        params: tables, or parameter groups of them.
        lr: learning rate.
        beta: β, the memory of the second moment.
        eps: ε.
    """

    def __init__(self, params: Any, *, lr: float, beta: float = 0.999, eps: float = 1e-8) -> None:
        super().__init__(params, {"lr": lr, "beta": beta, "eps": eps})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step with the gradients that the tables have; there is no closure."""
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is not None:
                    self._update(table, local_of(table.grad), group)

    def _update(self, table: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, beta, rate = self.state[table], group["beta"], -float(group["lr"])
        if not state:
            state["moment"], state["count"] = zeros_by_row(table), zeros_by_row(table)
        moments, counts, weights = local_of(state["moment"]), local_of(state["count"]), local_of(table)
        if gradient.is_sparse:
            gradient = gradient.coalesce()
            rows, values = gradient.indices()[0], gradient.values().float()
            count = counts[rows] + 1
            moment = torch.lerp(values.square().mean(1), moments[rows], beta)
            counts[rows], moments[rows] = count, moment
        else:
            read, values = gradient.any(1), gradient.float()
            # A row without a gradient has no step, whatever it is divided by.
            count = counts.add_(read).clamp(min=1)
            moment = torch.where(read, torch.lerp(values.square().mean(1), moments, beta), moments, out=moments)
        size = (moment / (1 - beta**count)).sqrt_().add_(group["eps"])
        step = (values / size.unsqueeze(1)).to(table.dtype)
        if gradient.is_sparse:
            weights.index_add_(0, rows, step, alpha=rate)
        else:
            weights.add_(step, alpha=rate)


def tables_of(model: nn.Module) -> list[nn.Embedding]:
    """Return a model's tables (`LongspanPreTrainedModel.tables`) that are trained."""
    tables = model.tables() if isinstance(model, LongspanPreTrainedModel) else []
    return [each for each in tables if each.weight.requires_grad]


def apart(
    tables: Sequence[nn.Embedding], dense: Optimizer, arguments: TrainingArguments, *, sparse: bool
) -> RowwiseAdam:
    """Return an optimizer of tables, which are taken out of another one.

    Args:
        tables: embeddings.
        dense: an optimizer, which is left with everything else.
        arguments: have the learning rate, β and ε of tables.
        sparse: whether the gradients of tables are sparse from now on.
    """
    weights = [table.weight for table in tables]
    take(dense, weights)
    for table in tables:
        table.sparse = sparse
    return RowwiseAdam(weights, lr=arguments.learning_rate, beta=arguments.adam_beta2, eps=arguments.adam_epsilon)


def clip_gradients(parameters: Iterable[Tensor], most: float) -> Tensor:
    """Scale gradients, sparse ones too, so that their norm is at most `most`, and return the norm that they had.

    `torch.nn.utils.clip_grad_norm_` has no norm of sparse gradients. Of gradients that are divided among processes, it
    is the norm of the whole.
    """
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            # Rows that were read twice count with the sum of both.
            parameter.grad = parameter.grad.coalesce()
        gradients.append(parameter.grad.values() if parameter.grad.is_sparse else parameter.grad)
    norm: Tensor = whole_of(get_total_norm(gradients))
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        local_of(gradient).mul_(factor)
    return norm
