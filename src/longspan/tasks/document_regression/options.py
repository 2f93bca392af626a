"""Options of document regression."""

from dataclasses import dataclass

from longspan.data.config import DataConfig
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "RegressionData", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class RegressionData(DataConfig):
    """Documents with a number each.

    Attributes:
        label_column: The column with the numbers.
    """

    label_column: str = "label"
