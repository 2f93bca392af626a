"""The settings of recordings: `RecordingData`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from longspan.data.config import SourceData
from longspan.errors import UserError
from longspan.options import Range, option

if TYPE_CHECKING:
    from longspan.data.signals.augmentation import Augmentation


@dataclass(frozen=True)
class RecordingData(SourceData):
    """Recordings: where they are, their features, and their augmentation in training."""

    #: What is kept of a recording that is longer than `max_length`.
    keep: ClassVar[str] = "first"

    recording_column: str = option(
        "recording",
        "column with the recordings: paths, absolute or relative to the table's folder; in memory and in JSON also "
        'arrays, or objects with "path", "start" and "end", or with "array" and "sampling_rate". In a '
        "folder with one sub-folder per class, each audio file is a recording.",
    )
    start_column: str = option(
        "start", "column with the start of a recording within its file, in seconds, if there is one"
    )
    end_column: str = option("end", "column with its end, likewise")
    sample_rate: int = option(
        0,
        "samples per second; recordings with another rate are resampled. 0 means the most frequent rate of the "
        "training recordings, at most 16,000.",
        Range(0, 768_000),
    )
    features: Literal["mel", "samples"] = option(
        "mel",
        '"mel" for the logarithms of power in mel bands, or "samples" for the samples themselves, those of a hop in '
        "each frame",
    )
    bands: int = option(40, "number of mel bands", Range(1, 4096))
    frame_seconds: float = option(0.025, "length of the window of a frame", Range(1e-4, 60), advice="0.01 is common")
    hop_seconds: float = option(0.01, "time from one frame to the next", Range(1e-4, 60), advice="0.01 is common")
    normalise: Literal["level", "bands", "none"] = option(
        "level",
        '"level" gives a recording as a whole mean 0 and deviation 1. "bands" gives them to each band by itself. This '
        'takes away the voice of a speaker and the sound of a microphone, but also steady sounds. "none" does '
        "nothing.",
    )
    max_length: int = option(0, "maximum number of frames per recording, the first ones; 0 keeps all", Range(0))
    speed: float = option(
        0.0,
        "augmentation: largest change of speed and pitch together; 0.25 draws factors from 0.8 to 1.25. This and the "
        "next six apply to training alone, and differ in each epoch.",
        Range(0, 1),
    )
    warp: float = option(
        0.0,
        "augmentation: largest change of the frequencies alone, as of speakers with other vocal tracts; 0.2 draws "
        "factors from 0.83 to 1.2",
        Range(0, 1),
    )
    shift: float = option(
        0.0,
        "augmentation: largest shift in time, in seconds: silence before the recording, or a later start",
        Range(0, below=1e6),
    )
    noise: float = option(
        0.0, "augmentation: largest level of white noise, as a share of the recording's own level", Range(0, below=1e6)
    )
    filter: float = option(
        0.0,
        "augmentation: largest gain or loss of low, middle and high frequencies, in decibels, as by other voices, "
        "rooms and microphones (Nam et al. 2022). It has no effect on samples, nor on whole recordings with "
        '`normalise="bands"`.',
        Range(0, below=1e6),
    )
    mask_times: float = option(
        0.0, "augmentation: largest share of frames that is masked, in one stretch (SpecAugment)", Range(0, 1)
    )
    mask_bands: float = option(0.0, "augmentation: largest share of bands that is masked, likewise", Range(0, 1))

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features == "samples" and self.warp:
            raise UserError("data.warp is for data.features=mel, got data.features=samples; leave one of them out.")

    @property
    def augmentation(self) -> "Augmentation":
        """Changes of recordings in training."""
        from longspan.data.signals.augmentation import Augmentation

        gains = self.filter if self.features == "mel" else 0.0
        return Augmentation(self.speed, self.warp, self.shift, self.noise, gains, self.mask_times, self.mask_bands)
