"""Options of frame labelling."""

from dataclasses import dataclass

from longspan.data.signals.options import RecordingData
from longspan.errors import UserError
from longspan.options import option
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions, SoundOptions

__all__ = ["EvaluationOptions", "FrameData", "PredictionOptions", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions
PredictionOptions = SoundOptions


@dataclass(frozen=True)
class FrameData(RecordingData):
    """Recordings with labelled segments."""

    recording_column: str = option(
        "recording",
        "column with the recordings: paths, absolute or relative to the table's folder; in memory and in JSON also "
        'arrays, or objects with "path", "start" and "end", or with "array" and "sampling_rate"',
    )
    start_column: str = option(
        "start", "column with the start of a segment, in seconds, in a table with a row for each segment"
    )
    end_column: str = option("end", "column with its end")
    shift: float = option(0.0, "augmentation: largest change of where a window begins, in seconds")
    segments_column: str = option(
        "segments",
        'column with the list of segments of a recording, each with "start" and "end" in seconds from its beginning, '
        'and "label"',
    )
    label_column: str = option("label", "column with its label")
    outside: str = option("silence", "label of frames outside of all segments")
    max_length: int = option(
        2000,
        "maximum number of frames that are read at once, in training, too. Longer recordings are read in windows, of "
        "which an eighth on either side is context. 0 reads recordings as a whole.",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.outside.strip():
            raise UserError("data.outside must be a label, got an empty text; leave it out for 'silence'.")
