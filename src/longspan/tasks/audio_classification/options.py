"""Options of audio classification."""

from dataclasses import dataclass

from longspan.data.signals.options import RecordingData
from longspan.tasks.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["AudioData", "EvaluationOptions", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class AudioData(RecordingData):
    """Recordings with their classes.

    Attributes:
        label_column: The column with the classes.
    """

    label_column: str = "label"
