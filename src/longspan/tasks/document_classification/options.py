"""Options of document classification."""

from dataclasses import dataclass

from longspan.data.config import DataConfig
from longspan.tasks.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["ClassificationData", "EvaluationOptions", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class ClassificationData(DataConfig):
    """Documents with their classes.

    Attributes:
        label_column: The column with the classes; "rating" reads it from file names ID_RATING.txt in class folders.
    """

    label_column: str = "label"
