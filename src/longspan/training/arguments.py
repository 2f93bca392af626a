"""The settings of the Trainer: `Arguments`."""

from dataclasses import dataclass, field
from typing import Literal

from transformers import TrainingArguments
from transformers.training_args import OptimizerNames


@dataclass
class Arguments(TrainingArguments):
    """The arguments of transformers, with two optimizers more.

    Attributes:
        optim: optimizer, one of those of transformers, muon or coupled_adam. Muon orthogonalises the steps of the
            matrices of layers; everything else has AdamW. Coupled Adam has the decay of weights in their gradients, as
            most work on graphs has it; AdamW decays weights apart from its steps.
        muon: whether it is Muon.
        coupled_adam: whether it is Adam with coupled decay.
    """

    optim: OptimizerNames | Literal["muon", "coupled_adam"] | str = "adamw_torch_fused"
    muon: bool = field(default=False, init=False)
    coupled_adam: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.optim in ("muon", "coupled_adam"):
            self.muon, self.coupled_adam = self.optim == "muon", self.optim == "coupled_adam"
            self.optim = "adamw_torch_fused"
        super().__post_init__()
