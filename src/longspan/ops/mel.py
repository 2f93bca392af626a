"""Features of sampled sound: log-mel bands, raw frames, and their normalisation.

The filter bank is that of Slaney's Auditory Toolbox (1998): triangles with a unit area, linear below 1,000 Hz and
logarithmic above, as in librosa.
"""

import functools
import math

import numpy as np
import torch

_LINEAR, _LIMIT = 200 / 3, 1000.0
_STEP = math.log(6.4) / 27
#: Addend of powers before their logarithm: a silent frame is no outlier.
FLOOR = 1e-6


def to_mel(hertz: np.ndarray) -> np.ndarray:
    """Return frequencies on Slaney's mel scale."""
    above = np.maximum(hertz, _LIMIT)
    found: np.ndarray = np.where(hertz < _LIMIT, hertz / _LINEAR, _LIMIT / _LINEAR + np.log(above / _LIMIT) / _STEP)
    return found


def to_hertz(mel: np.ndarray) -> np.ndarray:
    """Frequencies in Hz at these places on the mel scale."""
    knee = _LIMIT / _LINEAR
    found: np.ndarray = np.where(mel < knee, mel * _LINEAR, _LIMIT * np.exp(_STEP * (np.maximum(mel, knee) - knee)))
    return found


def filter_bank(rate: int, size: int, bands: int, warp: float = 1.0) -> np.ndarray:
    """Return the weights of frequencies in each band, (bands, size // 2 + 1) float32.

    Args:
        rate: Samples per second.
        size: Samples of a Fourier transform.
        bands: The number of bands.
        warp: Factor of the frequencies of the speaker (Jaitly and Hinton 2013). It applies up to 7/8 of the highest
            frequency. Above, the map is linear and keeps the highest frequency. Bands keep their sum of weights.
    """
    frequencies = np.linspace(0, rate / 2, size // 2 + 1)
    if warp != 1:
        top = rate / 2
        knee = top * 7 / 8 * min(1, 1 / warp)
        frequencies = np.where(
            frequencies <= knee,
            frequencies * warp,
            top - (top - knee * warp) / (top - knee) * (top - frequencies),
        )
    edges = to_hertz(np.linspace(0, to_mel(np.array(rate / 2)), bands + 2))
    slopes = edges[:, None] - frequencies
    rising = -slopes[:-2] / np.diff(edges)[:-1, None]
    falling = slopes[2:] / np.diff(edges)[1:, None]
    areas = 2 / (edges[2:] - edges[:-2])
    weights = np.maximum(0, np.minimum(rising, falling)) * areas[:, None]
    if warp != 1:
        # As much of white noise as otherwise, though the map stretches some frequencies.
        sums = filter_bank(rate, size, bands).sum(1) / np.maximum(weights.sum(1), np.finfo(np.float32).tiny)
        weights *= sums[:, None]
    return weights.astype(np.float32)


@functools.lru_cache(16)
def _plain_bank(rate: int, size: int, bands: int) -> torch.Tensor:
    return torch.from_numpy(filter_bank(rate, size, bands))


def fourier_size(frame: int) -> int:
    """Return the size of the Fourier transform of a frame: the next power of 2."""
    return 1 << max(1, frame - 1).bit_length()


def log_mel(samples: np.ndarray, *, rate: int, frame: int, hop: int, bands: int, warp: float = 1.0) -> np.ndarray:
    """Return the logarithms of the power in each band, (t, bands) float32.

    Frame t has the samples from `t * hop` on: `frame` of them under a Hann window, in the middle of the next power of
    2. Recordings that are shorter end with zeros.

    Args:
        samples: (n,) float32.
        rate: Samples per second.
        frame: Samples of a frame.
        hop: Samples from one frame to the next.
        bands: The number of bands.
        warp: See `filter_bank`.
    """
    size = fourier_size(frame)
    x = torch.from_numpy(np.ascontiguousarray(samples, np.float32))
    if len(x) < size:
        x = torch.nn.functional.pad(x, (0, size - len(x)))
    window = torch.hann_window(frame)
    spectrum = torch.stft(x, size, hop, frame, window, center=False, return_complex=True)
    power = spectrum.real.square() + spectrum.imag.square()
    bank = _plain_bank(rate, size, bands) if warp == 1 else torch.from_numpy(filter_bank(rate, size, bands, warp))
    found: np.ndarray = (bank @ power + FLOOR).log().T.contiguous().numpy()
    return found


def raw(samples: np.ndarray, *, hop: int) -> np.ndarray:
    """Return samples in frames that do not overlap, (t, hop) float32, the last one with zeros at its end."""
    count = -(-len(samples) // hop)
    padded = np.zeros(max(1, count) * hop, np.float32)
    padded[: len(samples)] = samples
    return padded.reshape(-1, hop)


def normalised(frames: np.ndarray, axis: int | None, least: float) -> np.ndarray:
    """Return frames (t, width) with mean 0 and deviation 1 along an axis, None for all numbers, as float32.

    Args:
        frames: The frames of one recording.
        axis: 0 for each band by itself.
        least: The smallest deviation that is divided by: a silent recording has none.
    """
    mean, deviation = (each(axis, np.float64) for each in (frames.mean, frames.std))
    found: np.ndarray = ((frames - mean) / np.maximum(deviation, least)).astype(np.float32)
    return found
