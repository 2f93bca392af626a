"""Options of audio classification."""

from dataclasses import dataclass

from longspan.data.signals.options import RecordingData
from longspan.errors import UserError
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions, SoundOptions, option

__all__ = ["AudioData", "EvaluationOptions", "PredictionOptions", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class AudioData(RecordingData):
    """Recordings with their classes.

    Attributes:
        label_column: The column with the classes.
    """

    label_column: str = "label"


@dataclass(frozen=True)
class PredictionOptions(SoundOptions):
    """How recordings are cut for predictions."""

    every: float = option(
        0.0, "seconds of sound for each prediction, read in constant memory; 0 for one prediction per recording"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 <= self.every < 1e6:
            raise UserError(f"every must be at least 0 seconds and finite, got {self.every}; choose another.")
        if self.pcm_rate and not self.every:
            raise UserError("pcm_rate needs the seconds of sound for each prediction, got every=0; set every.")
