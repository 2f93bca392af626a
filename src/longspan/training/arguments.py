"""The settings of the Trainer: `Arguments`."""

from dataclasses import dataclass, field
from typing import Literal

from transformers import TrainingArguments
from transformers.training_args import OptimizerNames

from longspan.training.sharding import KINDS


@dataclass
class Arguments(TrainingArguments):
    """The arguments of transformers, with two optimizers more, and weights divided among processes by longspan.

    Attributes:
        optim: optimizer, one of those of transformers, muon or coupled_adam. Muon orthogonalises the steps of the
            matrices of layers; everything else has AdamW. Coupled Adam has the decay of weights in their gradients, as
            most work on graphs has it; AdamW decays weights apart from its steps.
        fsdp: how weights are divided among processes: a key of `longspan.training.sharding.KINDS`, or true for the
            first. It becomes `shards`: accelerate, which would do nothing with it on CPUs, sees none.
        shards: that key; empty for whole weights in each process.
        muon: whether it is Muon.
        coupled_adam: whether it is Adam with coupled decay.
    """

    optim: OptimizerNames | Literal["muon", "coupled_adam"] | str = "adamw_torch_fused"
    fsdp: str | bool | None = None
    shards: str = field(default="", init=False)
    muon: bool = field(default=False, init=False)
    coupled_adam: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.optim in ("muon", "coupled_adam"):
            self.muon, self.coupled_adam = self.optim == "muon", self.optim == "coupled_adam"
            self.optim = "adamw_torch_fused"
        if self.fsdp:
            self.shards, self.fsdp = next(iter(KINDS)) if self.fsdp is True else str(self.fsdp), None
        super().__post_init__()


def data_seed(arguments: TrainingArguments) -> int:
    """Return the seed of the order of training examples, and of what is drawn for them."""
    return arguments.seed if arguments.data_seed is None else arguments.data_seed
