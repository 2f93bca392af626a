"""Large tables of embeddings, of which each step reads a few rows: gradients and an optimizer for those rows alone.

With dense gradients, AdamW and the clipping of gradients read and write every row of the table and of its two averages
in every step. On a CPU that takes longer than the rest of the step. The optimizer is the same on every device, whatever
gradients it gets, so that checkpoints go from one to another.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from transformers import TrainingArguments

from longspan.models.model import LongspanPreTrainedModel
from longspan.training.joined import take


class RowwiseAdam(Optimizer):
    """Adam without momentum, one second moment for each row, and steps for the rows that have a gradient.

    For each row r with the gradient g, of width d, in the c-th step that it has one:
        v_r = β v_r + (1 - β) |g|²/d
        w_r = w_r - lr · g / (√(v_r / (1 - β^c)) + ε)

    Momentum would move rows that the step did not read. As c counts the row's own steps, a rare row's first step is as
    long as a frequent one's, unlike in `torch.optim.SparseAdam`. State: two numbers per row. Rows are not decayed.

    The rows of a sparse gradient are those that were read, even with zero gradients. Those of a dense one, as GPUs
    exchange them, are those that are not zero.

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
                    self._update(table, *_rows(table.grad), group)

    def _update(self, table: Tensor, rows: Tensor, values: Tensor, group: dict[str, Any]) -> None:
        state, beta = self.state[table], group["beta"]
        if not state:
            state["moment"] = torch.zeros(len(table), dtype=torch.float32, device=table.device)
            state["count"] = torch.zeros(len(table), dtype=torch.float32, device=table.device)
        values = values.float()
        count = state["count"][rows] + 1
        moment = torch.lerp(values.square().mean(1), state["moment"][rows], beta)
        state["count"][rows], state["moment"][rows] = count, moment
        size = (moment / (1 - beta**count)).sqrt_().add_(group["eps"])
        table.index_add_(0, rows, (values / size.unsqueeze(1)).to(table.dtype), alpha=-float(group["lr"]))


def _rows(gradient: Tensor) -> tuple[Tensor, Tensor]:
    """Return the numbers of the rows that have a gradient, `(n,)`, and their gradients, `(n, d)`."""
    if gradient.is_sparse:
        gradient = gradient.coalesce()
        return gradient.indices()[0], gradient.values()
    rows = gradient.any(1).nonzero().squeeze(1)
    return rows, gradient[rows]


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

    `torch.nn.utils.clip_grad_norm_` has no norm of sparse gradients.
    """
    gradients = []
    for parameter in parameters:
        if parameter.grad is None:
            continue
        if parameter.grad.is_sparse:
            # Rows that were read twice count with the sum of both.
            parameter.grad = parameter.grad.coalesce()
        gradients.append(parameter.grad.values() if parameter.grad.is_sparse else parameter.grad)
    norm = get_total_norm(gradients)
    factor = (most / (norm + 1e-6)).clamp(max=1.0)
    for gradient in gradients:
        gradient.mul_(factor)
    return norm
