"""Options of document regression."""

from dataclasses import dataclass

from longspan.data.config import UnlabelledData
from longspan.options import option
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "RegressionData", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class RegressionData(UnlabelledData):
    """Documents with a number each."""

    label_column: str = option("label", "column with the numbers")
