"""The mean of the last checkpoints' weights, which is often better than any of them.

As in section 6.1 of Vaswani et al. 2017, and for the reasons in Izmailov et al. 2018, "Averaging Weights Leads to Wider
Optima and Better Generalization", https://arxiv.org/abs/1803.05407.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.training import checkpoints


@dataclass(frozen=True)
class Averaged:
    """What came of it.

    Attributes:
        steps: After which steps the checkpoints were saved, the first one first.
        metric: The score by which models are chosen; empty where there are too few checkpoints for a mean.
        value: That of the mean on the validation split; None without validation.
        best: That of the best checkpoint.
        kept: Whether the mean is the model that was kept.
    """

    steps: list[int]
    metric: str
    value: float | None
    best: float | None
    kept: bool

    def announcement(self) -> str:
        """Return it in a sentence."""
        if len(self.steps) < 2:
            found = "1 checkpoint" if self.steps else "no checkpoint"
            return f"training.average_last found {found}, of which there is no mean; kept the model as it was."
        mean = f"the mean of the last {len(self.steps)} checkpoints"
        if self.value is None or self.best is None:
            return f"kept {mean}, without validation."
        chosen = "kept the mean" if self.kept else "kept the checkpoint"
        return f"{mean} has a validation {self.metric} of {self.value:.4g}, the best one {self.best:.4g}; {chosen}."


def load_mean(model: nn.Module, folders: Sequence[Path]) -> None:
    """Give a model the mean of the parameters in the folders of checkpoints; its buffers, such as fitted counts, stay.

    Sums are in float64, so that their order and number do not matter.

    Raises:
        UserError: A checkpoint lacks a parameter, as those of adapters and of sharded weights do.
    """
    parameters = {name: each for name, each in model.named_parameters() if each.is_floating_point()}
    sums = {name: torch.zeros_like(each, dtype=torch.float64, device="cpu") for name, each in parameters.items()}
    for checkpoint in folders:
        missing = set(sums)
        for path in sorted(checkpoint.glob("model*.safetensors")):
            with safe_open(path, "pt") as file:
                for name in missing & set(file.keys()):
                    sums[name] += file.get_tensor(name)
                missing -= set(file.keys())
        if missing:
            raise UserError(
                f"expected all weights of the model in {checkpoint} for training.average_last, got none named "
                f"{min(missing)}; leave training.average_last out."
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(sums[name] / len(folders))


def _copied(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all that a model consists of, for `load_state_dict`."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


class AveragesCheckpoints:
    """Part of a trainer: replaces the model that was kept by the mean of the last checkpoints, if that is better.

    Attributes:
        average_last: of how many checkpoints `average` takes the mean; 0 for none.
        averaged: what came of it, once it did.
    """

    args: Any
    model: Any
    state: Any
    eval_dataset: Any
    scored: dict[int, Any]
    score: Callable[[Any], Any]
    kept_step: Callable[[], int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.average_last = 0
        self.averaged: Averaged | None = None

    def average(self) -> None:
        """After training, keep the mean of the last checkpoints if it is better on the validation split.

        Without validation it is kept in any case. All processes call this.
        """
        found = checkpoints.complete(Path(self.args.output_dir))[: self.average_last][::-1]
        if len(found) < 2:
            self.averaged = Averaged([*map(checkpoints.step, found)], "", None, None, kept=False)
            return
        kept, best, metric = _copied(self.model), self.state.best_metric, self.args.metric_for_best_model
        load_mean(self.model, found)
        value, better, step = None, True, self.state.global_step
        if self.args.eval_strategy != "no":
            before = self.kept_step()
            self.scored[step] = self.score(self.eval_dataset)
            value = self.scored[step].numbers()[metric.removeprefix("eval_")]
            better = best is None or (value > best if self.args.greater_is_better else value < best)
            if not better:
                self.model.load_state_dict(kept)
                if before == step:
                    # What subclasses know of this step is that of the mean.
                    self.scored[step] = self.score(self.eval_dataset)
        self.averaged = Averaged([*map(checkpoints.step, found)], metric, value, best, better)
