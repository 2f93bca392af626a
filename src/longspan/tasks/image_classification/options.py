"""Options of image classification."""

from dataclasses import dataclass

from longspan.data.images.options import ImageData
from longspan.options import option
from longspan.tasks.base.options import ClassEvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "ImageClassificationData", "TrainingOptions"]

EvaluationOptions = ClassEvaluationOptions
TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class ImageClassificationData(ImageData):
    """Images with their classes."""

    label_column: str = option("label", "column with the classes")
