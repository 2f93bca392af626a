"""Options of document pairs."""

from dataclasses import dataclass
from typing import Literal

from longspan.data.config import DataConfig
from longspan.options import option
from longspan.tasks.base.options import ClassEvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "PairData", "TrainingOptions"]

EvaluationOptions = ClassEvaluationOptions
TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class PairData(DataConfig):
    """Pairs of documents with their classes."""

    max_length: int = option(0, "maximum number of tokens of each document, special tokens included; 0 keeps all")
    first_column: str = option("first", "column with the first document of each pair")
    second_column: str = option("second", "column with the second document of each pair")
    text_column: str = option("", "replaces `first_column`, as `longspan predict --text-column` sets it")
    label_column: str = option("label", "column with the classes")
    class_weights: Literal["none", "balanced"] = option(
        "none",
        '"balanced" multiplies the training loss of a pair of class c by n / (k n_c), for n training pairs and k '
        'classes. Rare classes then weigh as much as frequent ones. With "none", the loss is not weighted.',
    )
