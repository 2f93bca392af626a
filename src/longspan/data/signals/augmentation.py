"""Random changes of recordings for training, which their labels survive: `Augmentation`."""

import math
from dataclasses import astuple, dataclass

import numpy as np

#: Frequencies whose gain is drawn; between them it changes linearly.
_GAINS = 4


@dataclass(frozen=True)
class Augmentation:
    """Strengths of changes of recordings; 0 leaves out a change. See `longspan.data.signals.options.RecordingData`."""

    speed: float = 0.0
    warp: float = 0.0
    shift: float = 0.0
    noise: float = 0.0
    filter: float = 0.0
    mask_times: float = 0.0
    mask_bands: float = 0.0

    def __bool__(self) -> bool:
        return any(astuple(self))

    def waveform(self, samples: np.ndarray, rate: int, random: np.random.Generator) -> np.ndarray:
        """Return samples with another start and noise, (n,) float32."""
        if self.shift:
            samples = shifted(samples, round(random.uniform(-self.shift, self.shift) * rate))
        if self.noise:
            level = math.sqrt(float(np.square(samples).mean()) + 1e-12) * self.noise * random.random()
            samples = samples + level * random.standard_normal(len(samples), np.float32)
        return samples.astype(np.float32, copy=False)

    def tempo(self, random: np.random.Generator) -> float:
        """Return the factor of speed."""
        return factor(self.speed, random) if self.speed else 1.0

    def warping(self, random: np.random.Generator) -> float:
        """Return the factor of frequencies for `filter_bank`."""
        return factor(self.warp, random) if self.warp else 1.0

    def filtered(self, frames: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return logarithms of power (t, bands) with gains that change smoothly with the band (Nam et al. 2022)."""
        if not self.filter:
            return frames
        decibels = random.uniform(-self.filter, self.filter, _GAINS)
        bands = np.linspace(0, _GAINS - 1, frames.shape[1])
        gains = np.interp(bands, np.arange(_GAINS), decibels) * math.log(10) / 10
        return frames + gains.astype(np.float32)

    def frames(self, frames: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Return frames (t, width), normalised, with a stretch of time and one of bands at their mean, 0."""
        times, bands = frames.shape
        frames = frames.copy() if self.mask_times or self.mask_bands else frames
        if self.mask_times:
            start, end = _stretch(times, self.mask_times, random)
            frames[start:end] = 0
        if self.mask_bands:
            start, end = _stretch(bands, self.mask_bands, random)
            frames[:, start:end] = 0
        return frames


def faster(samples: np.ndarray, speed: float) -> np.ndarray:
    """Return samples that play at a speed, higher by as much, (n,) float32. Slower ones lack high frequencies."""
    import soxr

    found: np.ndarray = soxr.resample(samples, speed, 1.0, quality="HQ")
    return found


def factor(most: float, random: np.random.Generator) -> float:
    """Return a factor between 1 / (1 + most) and 1 + most, whose logarithm is uniform."""
    return float(math.exp(random.uniform(-1, 1) * math.log1p(most)))


def shifted(samples: np.ndarray, places: int) -> np.ndarray:
    """Return samples later by `places`, with zeros before them; earlier, without the first ones, if that is negative.

    At most half of them are left out.
    """
    if places < 0:
        return samples[min(-places, len(samples) // 2) :]
    return np.concatenate([np.zeros(places, samples.dtype), samples])


def _stretch(length: int, share: float, random: np.random.Generator) -> tuple[int, int]:
    """Return start and end of a random stretch: at most this share of a length (Park et al. 2019)."""
    size = int(random.integers(0, int(length * share) + 1))
    start = int(random.integers(0, length - size + 1))
    return start, start + size
