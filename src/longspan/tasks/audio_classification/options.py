"""Options of audio classification."""

from dataclasses import dataclass

from longspan.data.signals.options import RecordingData
from longspan.errors import UserError
from longspan.options import Range, option
from longspan.tasks.base.options import ClassEvaluationOptions, LengthTrainingOptions, SoundOptions

__all__ = ["AudioData", "EvaluationOptions", "PredictionOptions", "TrainingOptions"]

EvaluationOptions = ClassEvaluationOptions
TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class AudioData(RecordingData):
    """Recordings with their classes."""

    label_column: str = option("label", "column with the classes")


@dataclass(frozen=True)
class PredictionOptions(SoundOptions):
    """Windows of recordings for predictions."""

    every: float = option(
        0.0,
        "seconds of sound for each prediction, read in constant memory; 0 for one prediction per recording",
        Range(0, below=1e6),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pcm_rate and not self.every:
            raise UserError("pcm_rate needs the seconds of sound for each prediction, got every=0; set every.")
