"""Options of document pairs."""

from dataclasses import dataclass
from typing import Literal

from longspan.data.config import DataConfig
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "PairData", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class PairData(DataConfig):
    """Pairs of documents with their classes.

    Attributes:
        first_column: The column with the first document of each pair.
        second_column: The column with the second document of each pair.
        text_column: Instead of `first_column`, as `longspan predict --text-column` sets it.
        label_column: The column with the classes.
        class_weights: "balanced" multiplies the training loss of a pair of class c by n / (k n_c), for n training pairs
            and k classes. Rare classes then weigh as much as frequent ones. With "none", the loss is not weighted.
        max_length: Maximum number of tokens of each document, special tokens included; 0 keeps all.
    """

    first_column: str = "first"
    second_column: str = "second"
    text_column: str = ""
    label_column: str = "label"
    class_weights: Literal["none", "balanced"] = "none"
