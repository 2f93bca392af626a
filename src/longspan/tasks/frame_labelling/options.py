"""Options of frame labelling."""

from dataclasses import dataclass

from longspan.data.signals.options import RecordingData
from longspan.errors import UserError
from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions, SoundOptions

__all__ = ["EvaluationOptions", "FrameData", "PredictionOptions", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions
PredictionOptions = SoundOptions


@dataclass(frozen=True)
class FrameData(RecordingData):
    """Recordings with labelled segments.

    Attributes:
        recording_column: The column with the recordings: paths, absolute or relative to the table's folder; in memory
            and in JSON also arrays, or objects with "path", "start" and "end", or with "array" and "sampling_rate".
        segments_column: The column with the list of segments of a recording, each with "start" and "end" in seconds
            from its beginning, and "label".
        start_column: The column with the start of a segment, in seconds, in a table with a row for each segment.
        end_column: The column with its end.
        label_column: The column with its label.
        outside: The label of frames outside of all segments.
        max_length: Maximum number of frames that are read at once, in training, too. Longer recordings are read in
            windows, of which an eighth on either side is context. 0 reads recordings as a whole.
        shift: Augmentation: largest change of where a window begins, in seconds.
    """

    segments_column: str = "segments"
    label_column: str = "label"
    outside: str = "silence"
    max_length: int = 2000

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.outside.strip():
            raise UserError("data.outside must be a label, got an empty text; leave it out for 'silence'.")
