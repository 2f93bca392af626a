"""Features of sound: equal to librosa's up to rounding, and normalised."""

import numpy as np
import pytest
import torch
from rounding import EXP, assert_within, rounding

from longspan.ops.mel import FLOOR, filter_bank, fourier_size, log_mel, normalised, raw, to_hertz, to_mel

librosa_filters = pytest.importorskip("librosa.filters")


@pytest.mark.parametrize(("rate", "frame", "bands"), [(8000, 200, 40), (16000, 400, 80), (22050, 551, 13)])
def test_the_filter_bank_is_librosas(rate: int, frame: int, bands: int) -> None:
    size = fourier_size(frame)
    expected = librosa_filters.mel(sr=rate, n_fft=size, n_mels=bands, dtype=np.float64)
    # Both round to float32 at the end.
    allowed = rounding(2, expected.max(), torch.float32)
    assert_within(torch.from_numpy(filter_bank(rate, size, bands)), torch.from_numpy(expected), allowed)


def test_log_mel_is_the_formula() -> None:
    """As in librosa: the window in the middle of a Fourier transform, power in bands, no centring."""
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    window = np.zeros(256)
    window[28:228] = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(200) / 200)
    starts = range(0, len(x) - 255, 80)
    frames = np.array([x[start : start + 256] * window for start in starts])
    sizes, bank = np.abs(np.fft.rfft(frames)), filter_bank(8000, 256, 40).T.astype(np.float64)
    power = sizes**2 @ bank
    # A number of a Fourier transform in float32 goes through eight sums and products with a root of one, and bands are
    # sums of squares; logarithms err by the share of the error in the band.
    errors = rounding(5 * 8 + 3, torch.from_numpy(np.abs(frames).sum(1, keepdims=True)), torch.float32).numpy()
    allowed = torch.from_numpy((2 * sizes * errors + errors**2) @ bank / (power + FLOOR))
    allowed += rounding(129 + EXP, 1 + torch.from_numpy(np.abs(np.log(power + FLOOR))), torch.float32)
    found = log_mel(x, rate=8000, frame=200, hop=80, bands=40)
    assert_within(torch.from_numpy(found), torch.from_numpy(np.log(power + FLOOR)), allowed)


def test_scales_are_inverse() -> None:
    hertz = np.linspace(0, 8000, 50)
    np.testing.assert_allclose(to_hertz(to_mel(hertz)), hertz, atol=1e-9)


def test_short_sound_has_one_frame() -> None:
    assert log_mel(np.zeros(3, np.float32), rate=8000, frame=200, hop=80, bands=12).shape == (1, 12)
    assert raw(np.ones(3, np.float32), hop=2).tolist() == [[1, 1], [1, 0]]


def test_warping_moves_a_tone() -> None:
    """A factor of 1.25 moves a tone of 800 Hz into the band of 1,000 Hz, and keeps the ends of the spectrum."""
    times = np.arange(4000) / 8000
    tones = [np.sin(2 * np.pi * hertz * times).astype(np.float32) for hertz in (800, 1000)]
    settings = {"rate": 8000, "frame": 200, "hop": 80, "bands": 40}
    low, high = (log_mel(one, **settings).mean(0) for one in tones)
    warped = log_mel(tones[0], **settings, warp=1.25).mean(0)
    assert low.argmax() < high.argmax() == warped.argmax()
    bank = filter_bank(8000, 256, 40, warp=1.2)
    assert np.isfinite(bank).all()
    assert (bank.sum(1) > 0).all()


def test_normalised_bands_have_mean_0_and_deviation_1() -> None:
    frames = np.random.default_rng(0).normal(3, 5, (400, 6)).astype(np.float32)
    for axis in (0, None):
        found = normalised(frames, axis, 1e-2).astype(np.float64)
        # Means and deviations of as many numbers, in any order, of frames up to 3 / 5 from zero in deviations.
        allowed = float(rounding(2 * frames.size if axis is None else 2 * len(frames), 2.0, torch.float32))
        np.testing.assert_allclose(found.mean(axis), 0, atol=allowed)
        np.testing.assert_allclose(found.std(axis), 1, atol=allowed)
    assert not normalised(np.full((4, 6), 2, np.float32), 0, 1e-2).any()
