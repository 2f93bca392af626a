"""Frames of sampled sound, as transformers' pipelines ask for them: `LongspanFeatureExtractor`."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from transformers import BatchFeature, SequenceFeatureExtractor

from longspan.errors import UserError, check_choice
from longspan.ops.mel import fourier_size, log_mel, normalised, raw
from longspan.options import Range, check_number

#: The least deviation that recordings are divided by, of log powers and of samples.
_SILENCE = {"mel": 1e-2, "samples": 1e-4}
#: Sample rates, the largest that of the fastest converters.
RATES = Range(1, 768_000)
_SECONDS = Range(1e-4, 60)
#: The largest filter bank: weights of bands, whose memory a recording does not decide.
_WEIGHTS = 1 << 26
#: The most frames that a sample is in: each has its Fourier transform.
_OVERLAP = 256


class LongspanFeatureExtractor(SequenceFeatureExtractor):
    """Samples as frames: log-mel bands, or the samples of a hop.

    Args:
        feature_size: numbers in a frame.
        sampling_rate: samples per second.
        padding_value: what stands at padding.
        features: "mel" or "samples".
        frame_seconds: length of the window of a mel frame.
        hop_seconds: time from one frame to the next.
        normalise: "level" gives a recording as a whole mean 0 and deviation 1, "bands" each of its bands, and "none"
            does nothing.
        kwargs: further settings of transformers.

    Raises:
        UserError: for a setting out of range, or frames that take too much memory.
    """

    model_input_names = ["input_features", "attention_mask"]  # noqa: RUF012

    def __init__(
        self,
        feature_size: int = 40,
        sampling_rate: int = 16_000,
        padding_value: float = 0.0,
        *,
        features: str = "mel",
        frame_seconds: float = 0.025,
        hop_seconds: float = 0.01,
        normalise: str = "level",
        **kwargs: Any,
    ) -> None:
        super().__init__(feature_size, sampling_rate, padding_value, **kwargs)
        self.features, self.normalise = features, normalise
        self.frame_seconds, self.hop_seconds = frame_seconds, hop_seconds
        self._check()

    def _check(self) -> None:
        check_choice("features", self.features, _SILENCE)
        check_choice("normalise", self.normalise, ("level", "bands", "none"))
        check_number("feature_size", self.feature_size, int, Range(1))
        check_number("sampling_rate", self.sampling_rate, int, RATES)
        check_number("frame_seconds", self.frame_seconds, float, _SECONDS)
        check_number("hop_seconds", self.hop_seconds, float, _SECONDS)
        if self.features == "samples":
            return
        size = fourier_size(self.frame)
        if self.feature_size > _WEIGHTS // size:
            raise UserError(
                f"expected at most {_WEIGHTS // size:,} bands with frames of {self.frame:,} samples, got "
                f"{self.feature_size:,}; choose fewer bands, or shorter frames."
            )
        if self.frame > _OVERLAP * self.hop:
            raise UserError(
                f"expected frames of at most {_OVERLAP} hops, got {self.frame:,} samples with a hop of {self.hop:,}; "
                "choose shorter frames, or a longer hop."
            )

    @property
    def hop(self) -> int:
        """Samples from one frame to the next."""
        return max(1, round(self.hop_seconds * self.sampling_rate))

    @property
    def frame(self) -> int:
        """Samples of a frame's window."""
        return max(1, round(self.frame_seconds * self.sampling_rate))

    @property
    def reach(self) -> int:
        """Samples that a frame depends on, from its first one on."""
        return fourier_size(self.frame) if self.features == "mel" else self.hop

    @property
    def axis(self) -> int | None:
        """The axis of means and deviations: 0 for each band, which samples do not have; None for all numbers."""
        return 0 if self.normalise == "bands" and self.features == "mel" else None

    @property
    def least(self) -> float:
        """The least deviation that recordings are divided by."""
        return _SILENCE[self.features]

    def frames(self, sound: np.ndarray, warp: float = 1.0, speed: float = 1.0) -> np.ndarray:
        """Return the frames of samples, not normalised, (t, width) float32.

        Args:
            sound: (n,) samples.
            warp: of mel frames, see `filter_bank`.
            speed: factor of the time between mel frames.
        """
        if self.features == "samples":
            return raw(sound, hop=self.hop)
        hop = max(1, round(self.hop * speed))
        return log_mel(sound, rate=self.sampling_rate, frame=self.frame, hop=hop, bands=self.feature_size, warp=warp)

    def normalised(self, frames: np.ndarray) -> np.ndarray:
        """Return the frames of one recording, (t, width), as `normalise` says."""
        return frames if self.normalise == "none" else normalised(frames, self.axis, self.least)

    def __call__(
        self,
        raw_speech: np.ndarray | Sequence[Any],
        sampling_rate: int | None = None,
        padding: bool | str = True,
        max_length: int | None = None,
        truncation: bool = False,
        return_tensors: str | None = None,
        **kwargs: Any,
    ) -> BatchFeature:
        """Return `input_features` (b, t, feature_size) and `attention_mask` (b, t) of samples.

        Args:
            raw_speech: (n,) samples from -1 to 1, or a list of such; whole numbers are scaled by their type.
            sampling_rate: their samples per second; None means those of this extractor.
            padding, max_length, truncation, return_tensors, kwargs: see transformers; lengths are in frames.

        Raises:
            UserError: for another sampling rate, or for whole numbers of unknown type.
        """
        if sampling_rate not in (None, self.sampling_rate):
            raise UserError(
                f"expected sound with {self.sampling_rate} samples per second, got {sampling_rate}; resample it."
            )
        alone = np.ndim(raw_speech[0]) == 0
        sounds = [self._samples(one) for one in ([raw_speech] if alone else raw_speech)]
        read = BatchFeature({"input_features": [self.normalised(self.frames(one)) for one in sounds]})
        return self.pad(
            read,
            padding=padding,
            max_length=max_length,
            truncation=truncation,
            return_attention_mask=True,
            return_tensors=return_tensors,
        )

    @staticmethod
    def _samples(sound: Any) -> np.ndarray:
        found = scaled(np.asarray(sound))
        if found is None:
            raise UserError(
                "expected samples from -1 to 1, got whole numbers of unknown type; give a NumPy array of int16, or "
                "divide them."
            )
        return found


def scaled(array: np.ndarray) -> np.ndarray | None:
    """Samples as float32 from -1 to 1, whole numbers scaled by their type as soundfile does; None if that is unknown.

    Lists of Python's whole numbers say nothing about their type, unless all of them are from -1 to 1.
    """
    if array.dtype.kind == "u":
        middle = 2.0 ** (8 * array.dtype.itemsize - 1)
        return ((array.astype(np.float64) - middle) / middle).astype(np.float32)
    if array.dtype.kind == "i":
        if array.dtype.itemsize < 8:
            return (array / 2.0 ** (8 * array.dtype.itemsize - 1)).astype(np.float32)
        return array.astype(np.float32) if not array.size or np.abs(array).max() <= 1 else None
    return array.astype(np.float32)
