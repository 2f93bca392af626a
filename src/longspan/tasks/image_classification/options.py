"""Options of image classification."""

from dataclasses import dataclass

from longspan.data.images.options import ImageData
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "ImageClassificationData", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class ImageClassificationData(ImageData):
    """Images with their classes.

    Attributes:
        label_column: The column with the classes.
    """

    label_column: str = "label"
