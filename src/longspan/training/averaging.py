"""The mean of the last checkpoints' weights, which is often better than any of them.

As in section 6.1 of Vaswani et al. 2017, and for the reasons in Izmailov et al. 2018, "Averaging Weights Leads to Wider
Optima and Better Generalization", https://arxiv.org/abs/1803.05407.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn

from longspan.errors import UserError


@dataclass(frozen=True)
class Averaged:
    """What came of it.

    Attributes:
        steps: After which steps the checkpoints were saved, the first one first.
        metric: The score by which models are chosen.
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
        mean = f"the mean of the last {len(self.steps)} checkpoints"
        if self.value is None or self.best is None:
            return f"kept {mean}, without validation."
        chosen = "kept the mean" if self.kept else "kept the checkpoint"
        return f"{mean} has a validation {self.metric} of {self.value:.4g}, the best one {self.best:.4g}; {chosen}."


def load_mean(model: nn.Module, checkpoints: Sequence[Path]) -> None:
    """Give a model the mean of the parameters in checkpoints; its buffers, such as fitted counts, stay.

    Sums are in float64, so that their order and number do not matter.

    Raises:
        UserError: A checkpoint lacks a parameter, as those of adapters and of sharded weights do.
    """
    parameters = {name: each for name, each in model.named_parameters() if each.is_floating_point()}
    sums = {name: torch.zeros_like(each, dtype=torch.float64, device="cpu") for name, each in parameters.items()}
    for checkpoint in checkpoints:
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
            parameter.copy_(sums[name] / len(checkpoints))


def copied(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all that a model consists of, for `load_state_dict`."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}
