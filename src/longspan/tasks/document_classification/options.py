"""Options of document classification."""

from dataclasses import dataclass
from typing import Literal

from longspan.data.config import StreamedData, UnlabelledData
from longspan.options import option
from longspan.tasks.base.options import ClassEvaluationOptions, LengthTrainingOptions

__all__ = ["ClassificationData", "EvaluationOptions", "TrainingOptions"]

EvaluationOptions = ClassEvaluationOptions
TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class ClassificationData(UnlabelledData, StreamedData):
    """Documents with their classes."""

    label_column: str = option(
        "label", 'column with the classes; "rating" reads it from file names ID_RATING.txt in class folders'
    )
    class_weights: Literal["none", "balanced"] = option(
        "none",
        '"balanced" multiplies the training loss of a document of class c by n / (k n_c), for n training documents '
        'and k classes. Rare classes then weigh as much as frequent ones. With "none", the loss is not weighted.',
    )
