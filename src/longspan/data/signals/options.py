"""The settings of recordings: `RecordingData`."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from longspan.data.config import SourceData
from longspan.errors import UserError

if TYPE_CHECKING:
    from longspan.data.signals.augmentation import Augmentation

#: The largest change of speed and warping: beyond, no voice sounds so.
_MOST = 1.0


@dataclass(frozen=True)
class RecordingData(SourceData):
    """Recordings: where they are, their features, and their augmentation in training.

    Attributes:
        recording_column: The column with the recordings: paths, absolute or relative to the table's folder; in memory
            and in JSON also arrays, or objects with "path", "start" and "end", or with "array" and "sampling_rate". In
            a folder with one sub-folder per class, each audio file is a recording.
        start_column: The column with the start of a recording within its file, in seconds, if there is one.
        end_column: The column with its end, likewise.
        sample_rate: Samples per second; recordings with another rate are resampled. 0 means the most frequent rate of
            the training recordings, at most 16,000.
        features: "mel" for the logarithms of power in mel bands, or "samples" for the samples themselves, those of a
            hop in each frame.
        bands: Number of mel bands.
        frame_seconds: Length of the window of a frame.
        hop_seconds: Time from one frame to the next.
        normalise: "level" gives a recording as a whole mean 0 and deviation 1. "bands" gives them to each band by
            itself. This takes away the voice of a speaker and the sound of a microphone, but also steady sounds. "none"
            does nothing.
        max_length: Maximum number of frames per recording, the first ones; 0 keeps all.
        speed: Augmentation: largest change of speed and pitch together; 0.25 draws factors from 0.8 to 1.25. This and
            the next six apply to training alone, and differ in each epoch.
        warp: Augmentation: largest change of the frequencies alone, as of speakers with other vocal tracts; 0.2 draws
            factors from 0.83 to 1.2.
        shift: Augmentation: largest shift in time, in seconds: silence before the recording, or a later start.
        noise: Augmentation: largest level of white noise, as a share of the recording's own level.
        filter: Augmentation: largest gain or loss of low, middle and high frequencies, in decibels, as by other voices,
            rooms and microphones (Nam et al. 2022). It has no effect on whole recordings with `normalise="bands"`.
        mask_times: Augmentation: largest share of frames that is masked, in one stretch (SpecAugment).
        mask_bands: Augmentation: largest share of bands that is masked, likewise.
    """

    #: What is kept of a recording that is longer than `max_length`.
    keep: ClassVar[str] = "first"

    recording_column: str = "recording"
    start_column: str = "start"
    end_column: str = "end"
    sample_rate: int = 0
    features: Literal["mel", "samples"] = "mel"
    bands: int = 40
    frame_seconds: float = 0.025
    hop_seconds: float = 0.01
    normalise: Literal["level", "bands", "none"] = "level"
    max_length: int = 0
    speed: float = 0.0
    warp: float = 0.0
    shift: float = 0.0
    noise: float = 0.0
    filter: float = 0.0
    mask_times: float = 0.0
    mask_bands: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, least in (("sample_rate", 0), ("bands", 1), ("max_length", 0)):
            if getattr(self, name) < least:
                raise UserError(f"data.{name} must be at least {least}, got {getattr(self, name)}; raise it.")
        for name in ("frame_seconds", "hop_seconds"):
            if not 1e-4 <= getattr(self, name) <= 60:
                raise UserError(
                    f"data.{name} must be from 0.0001 to 60 seconds, got {getattr(self, name)}; 0.01 is common."
                )
        for name, most in (("speed", _MOST), ("warp", _MOST), ("mask_times", 1), ("mask_bands", 1)):
            if not 0 <= getattr(self, name) <= most:
                raise UserError(f"data.{name} must be from 0 to {most:g}, got {getattr(self, name)}; choose another.")
        for name in ("shift", "noise", "filter"):
            if not 0 <= getattr(self, name) < 1e6:
                raise UserError(
                    f"data.{name} must be at least 0 and finite, got {getattr(self, name)}; choose another."
                )
        for name in ("warp", "filter"):
            if self.features == "samples" and getattr(self, name):
                raise UserError(
                    f"data.{name} is for data.features=mel, got data.features=samples; leave one of them out."
                )

    @property
    def augmentation(self) -> "Augmentation":
        """How recordings are changed in training."""
        from longspan.data.signals.augmentation import Augmentation

        return Augmentation(
            self.speed, self.warp, self.shift, self.noise, self.filter, self.mask_times, self.mask_bands
        )
