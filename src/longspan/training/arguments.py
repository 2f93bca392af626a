"""What the Trainer is told: `Arguments`."""

from dataclasses import dataclass, field
from typing import Literal

from transformers import TrainingArguments
from transformers.training_args import OptimizerNames


@dataclass
class Arguments(TrainingArguments):
    """The arguments of transformers, with an optimizer more.

    Attributes:
        optim: optimizer, one of those of transformers or muon. Muon orthogonalises the steps of the matrices of layers;
            everything else has AdamW.
        muon: whether it is Muon.
    """

    optim: OptimizerNames | Literal["muon"] | str = "adamw_torch_fused"
    muon: bool = field(default=False, init=False)

    def __post_init__(self) -> None:
        if self.optim == "muon":
            self.muon, self.optim = True, "adamw_torch_fused"
        super().__post_init__()
