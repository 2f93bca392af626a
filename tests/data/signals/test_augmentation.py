"""Random changes of recordings: what each does, and that nothing but the seed, epoch and row decides it."""

import numpy as np
import pytest
from datasets import Dataset
from sounds import RATE, tone

from longspan import UserError
from longspan.data.signals.augmentation import Augmentation, factor, faster, shifted
from longspan.data.signals.options import RecordingData
from longspan.data.signals.processor import FRAMES, AugmentedRecordings, RecordingProcessor


def peak(samples: np.ndarray) -> float:
    """Return the strongest frequency, in Hz."""
    return float(np.abs(np.fft.rfft(samples)).argmax() * RATE / len(samples))


def test_resampling_changes_length_and_pitch_together() -> None:
    sound = tone("middle", 1, np.random.default_rng(0))
    for speed in (0.8, 1.0, 1.25):
        changed = faster(sound, speed)
        assert len(changed) == pytest.approx(len(sound) / speed, abs=1)
        # A spectrum of about a second has bins of about 1 Hz.
        assert peak(changed) == pytest.approx(speed * peak(sound), abs=3)


def test_the_speed_of_frames_is_that_of_resampled_sound() -> None:
    """As many frames, with a tone in the same band; the highest band is not emptied."""
    sound = tone("middle", 1, np.random.default_rng(0))
    data = RecordingData(sample_rate=RATE, bands=40)
    extractor = RecordingProcessor.learned(Dataset.from_dict({"recording": []}), data).extractor
    for speed in (0.8, 1.25):
        found, expected = extractor.frames(sound, speed, speed), extractor.frames(faster(sound, speed))
        # Both cover all but the end of the sound, of which a frame has 256 samples.
        assert abs(len(found) - len(expected)) <= 1
        assert found.mean(0).argmax() == expected.mean(0).argmax()
        # White noise, of which it has as much; an emptied band would be nats below.
        assert found.mean(0)[-1] == pytest.approx(extractor.frames(sound).mean(0)[-1], abs=0.3)


def test_gains_change_smoothly_with_the_band_and_not_with_time() -> None:
    change, frames = Augmentation(filter=6.0), np.zeros((5, 31), np.float32)
    gains = [change.filtered(frames, np.random.default_rng(seed)) for seed in range(20)]
    for found in gains:
        assert found.dtype == np.float32
        assert (found == found[0]).all()
        # Linear between every tenth band.
        np.testing.assert_allclose(np.diff(found[0].reshape(-1)[:30].reshape(3, 10), 2, axis=1), 0, atol=1e-5)
    # 6 decibels are a factor of 3.98 of power.
    largest = np.abs(gains).max()
    assert 0.9 * np.log(3.98) < largest < np.log(3.99)
    assert Augmentation().filtered(frames, np.random.default_rng(0)) is frames


def test_samples_have_no_bands(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"data\.warp is for data\.features=mel"):
        RecordingData(features="samples", warp=0.5)
    samples = RecordingData(features="samples", filter=8.0, sample_rate=8000)
    assert not samples.augmentation
    RecordingProcessor.learned(Dataset.from_dict({"recording": []}), samples)
    assert "data.filter=8 has no effect on samples" in capsys.readouterr().err


def test_factors_are_as_often_above_one_as_below() -> None:
    random = np.random.default_rng(0)
    drawn = np.array([factor(0.25, random) for _ in range(2000)])
    assert drawn.min() >= 0.8
    assert drawn.max() <= 1.25
    # Four standard errors of the mean logarithm.
    assert abs(np.log(drawn).mean()) < 4 * np.log(1.25) / np.sqrt(3 * 2000)


def test_shifts_keep_at_least_half() -> None:
    sound = np.arange(1, 7, dtype=np.float32)
    assert shifted(sound, 2).tolist() == [0, 0, 1, 2, 3, 4, 5, 6]
    assert shifted(sound, -2).tolist() == [3, 4, 5, 6]
    assert shifted(sound, -100).tolist() == [4, 5, 6]


def test_noise_has_at_most_its_level() -> None:
    sound = tone("low", 1, np.random.default_rng(0))
    for seed in range(5):
        changed = Augmentation(noise=0.3).waveform(sound, RATE, np.random.default_rng(seed))
        # A deviation estimated from 8,000 numbers is right up to a hundredth.
        assert (changed - sound).std() <= 0.31 * np.sqrt(np.square(sound).mean())


def test_masks_cover_at_most_their_share() -> None:
    frames = np.ones((40, 10), np.float32)
    for seed in range(20):
        found = Augmentation(mask_times=0.25, mask_bands=0.2).frames(frames, np.random.default_rng(seed))
        assert (found == 0).all(1).sum() <= 10
        assert (found == 0).all(0).sum() <= 2
    assert frames.all()


def test_a_recording_changes_with_the_epoch_alone() -> None:
    sound = tone("low", 0.2, np.random.default_rng(0)).tolist()
    one = {"path": None, "bytes": None, "samples": sound, "rate": RATE, "start": None, "end": None}
    rows = Dataset.from_dict({"recording": [one, one], "labels": [0, 1]})
    data = RecordingData(sample_rate=RATE, bands=8, speed=0.2, warp=0.2, shift=0.02, noise=0.1, mask_times=0.2)
    processor = RecordingProcessor.learned(rows, data)

    def drawn(seed: int) -> AugmentedRecordings:
        return AugmentedRecordings(rows, processor, data, seed)

    first, again = drawn(0), drawn(0)
    assert first[0, 1]["labels"] == 1
    found = first[3, 0][FRAMES]
    np.testing.assert_array_equal(found, again[3, 0][FRAMES])
    for other in (first[4, 0], first[3, 1], drawn(1)[3, 0]):
        assert other[FRAMES].shape != found.shape or not np.array_equal(other[FRAMES], found)


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("speed", -0.1, "data.speed must be from 0 to 1, got -0.1"),
        ("mask_bands", 1.5, "data.mask_bands must be from 0 to 1"),
        ("noise", float("nan"), "data.noise must be at least 0"),
        ("hop_seconds", 0.0, "data.hop_seconds must be from 0.0001 to 60, got 0.0"),
        ("bands", 0, "data.bands must be from 1 to 4096, got 0"),
    ],
)
def test_settings_out_of_range_are_named(key: str, value: float, told: str) -> None:
    with pytest.raises(UserError, match=told):
        RecordingData(**{key: value})  # type: ignore[arg-type]
