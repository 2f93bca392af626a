"""Large tables of embeddings, of which each step reads a few rows: gradients and an optimizer for those rows alone.

With dense gradients, AdamW and the clipping of gradients read and write every row of the table and of its two averages
in every step, which on a CPU takes longer than the rest of it.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import get_total_norm
from torch.optim import Optimizer
from transformers import TrainingArguments

from longspan.models.classification import LongspanForSequenceClassification
from longspan.models.ngrams import NgramEmbedding


class RowwiseAdam(Optimizer):
    """Adam without momentum, one second moment for each row, and steps for the rows that have a gradient.

    For each row r with the gradient g, of width d, in the c-th step that it has one:
        v_r = β v_r + (1 - β) |g|²/d
        w_r = w_r - lr · g / (√(v_r / (1 - β^c)) + ε)

    Momentum would move rows that the step did not read. As c counts the row's own steps, a rare row's first step is as
    long as a frequent one's, unlike in `torch.optim.SparseAdam`. State: two numbers per row. Rows are not decayed.

    Args:
        params: tables with sparse gradients, or parameter groups of them.
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
                    self._update(table, table.grad.coalesce(), group)

    def _update(self, table: Tensor, gradient: Tensor, group: dict[str, Any]) -> None:
        state, beta = self.state[table], group["beta"]
        if not state:
            state["moment"] = torch.zeros(len(table), dtype=torch.float32, device=table.device)
            state["count"] = torch.zeros(len(table), dtype=torch.float32, device=table.device)
        rows, values = gradient.indices()[0], gradient.values().float()
        count = state["count"][rows] + 1
        moment = torch.lerp(values.square().mean(1), state["moment"][rows], beta)
        state["count"][rows], state["moment"][rows] = count, moment
        size = (moment / (1 - beta**count)).sqrt_().add_(group["eps"])
        table.index_add_(0, rows, (values / size.unsqueeze(1)).to(table.dtype), alpha=-float(group["lr"]))


class BesideTables(Optimizer):
    """Two optimizers as one: `dense` for everything else, `tables` for tables with sparse gradients.

    They share their parameter groups with this one, so that schedules reach both. What else `dense` has, such as the
    modes of schedule-free optimizers, is found here too.
    """

    def __init__(self, dense: Optimizer, tables: Optimizer) -> None:
        self.dense, self.tables = dense, tables
        super().__init__([*dense.param_groups, *tables.param_groups], {})
        self._share()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step with each."""
        self.dense.step()
        self.tables.step()

    def state_dict(self) -> dict[str, Any]:
        return {"dense": self.dense.state_dict(), "tables": self.tables.state_dict()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.dense.load_state_dict(state_dict["dense"])
        self.tables.load_state_dict(state_dict["tables"])
        self._share()

    def _share(self) -> None:
        # Loading replaces the groups.
        self.param_groups = [*self.dense.param_groups, *self.tables.param_groups]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "dense":
            raise AttributeError(name)
        return getattr(self.dense, name)


def tables_of(model: nn.Module) -> list[nn.Embedding]:
    """Return the embeddings that are trained and of which a step reads few rows.

    They are those of n-grams, and beside a wide part those of tokens: Adam's momentum moves a rare token's vector about
    seven times as far each time it is read, and rare tokens tell training documents apart.
    """
    found: list[nn.Embedding] = [each for each in model.modules() if isinstance(each, NgramEmbedding)]
    if isinstance(model, LongspanForSequenceClassification) and model.wide is not None:
        tokens = model.get_input_embeddings()
        found += [tokens] if isinstance(tokens, nn.Embedding) else []
    return [each for each in found if each.weight.requires_grad]


def beside_tables(dense: Optimizer, tables: Sequence[nn.Embedding], arguments: TrainingArguments) -> BesideTables:
    """Return an optimizer of everything that `dense` is one of, in which `tables` have sparse gradients from now on."""
    weights = [table.weight for table in tables]
    for group in dense.param_groups:
        group["params"] = [each for each in group["params"] if all(each is not weight for weight in weights)]
    for table in tables:
        table.sparse = True
    rows = RowwiseAdam(weights, lr=arguments.learning_rate, beta=arguments.adam_beta2, eps=arguments.adam_epsilon)
    return BesideTables(dense, rows)


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
