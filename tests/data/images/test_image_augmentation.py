"""Random changes of training images."""

import numpy as np
import pytest

from longspan import UserError
from longspan.data.images.augmentation import Augmentation, resized
from longspan.data.images.options import ImageData


def drawn(change: Augmentation, array: np.ndarray, count: int = 40) -> list[np.ndarray]:
    return [change.changed(array, np.random.default_rng(seed)) for seed in range(count)]


IMAGE = np.arange(5 * 4 * 3, dtype=np.uint8).reshape(5, 4, 3)


def test_flips_mirror_half_of_the_images() -> None:
    found = drawn(Augmentation(flip=True), IMAGE, 200)
    mirrored = sum((one == IMAGE[:, ::-1]).all() for one in found)
    assert all((one == IMAGE).all() or (one == IMAGE[:, ::-1]).all() for one in found)
    # Of 200 fair coins, all but one in 10^5 samples are within 4.5 standard deviations of 7.
    assert abs(mirrored - 100) < 32


def test_shifts_mirror_the_edge() -> None:
    found = drawn(Augmentation(shift=1), IMAGE)
    expected = [
        np.pad(IMAGE, ((1, 1), (1, 1), (0, 0)), mode="symmetric")[row : row + 5, column : column + 4]
        for row in range(3)
        for column in range(3)
    ]
    seen = [next(number for number, each in enumerate(expected) if (each == one).all()) for one in found]
    assert len(set(seen)) > 5
    # Farther than the image is large.
    assert {one.shape for one in drawn(Augmentation(shift=20), IMAGE)} == {IMAGE.shape}


@pytest.mark.parametrize("channels", [1, 3])
def test_crops_keep_the_size_and_show_a_part(channels: int) -> None:
    ramp = np.repeat(np.linspace(0, 255, 40).astype(np.uint8)[:, None, None], 30, 1).repeat(channels, 2)
    for found in drawn(Augmentation(crop=0.3), ramp):
        assert found.shape == ramp.shape
        assert found.dtype == np.uint8
        assert (np.diff(found[:, 0, 0].astype(int)) >= 0).all()
        # At least half of the height for an area of 0.3 and the least ratio, less the rounding of sizes.
        assert int(found[-1, 0, 0]) - int(found[0, 0, 0]) > 100


def test_mixup_is_a_weighted_mean_with_an_image_of_any_size() -> None:
    random = np.random.default_rng(0)
    black, white = np.zeros((4, 6, 3), np.uint8), np.full((9, 2, 3), 255, np.uint8)
    found, share = Augmentation(mixup=0.5).mixed(black, white, random)
    assert found.shape == black.shape
    assert 0 < share < 1
    assert set(found.reshape(-1).tolist()) == {round(share * 255)}
    assert resized(black, 4, 6) is black


def test_values_out_of_range_are_refused() -> None:
    for wrong in ({"crop": 0.0}, {"crop": 1.5}, {"mixup": -1.0}, {"shift": -1}, {"max_side": 0}, {"patch_size": 0}):
        with pytest.raises(UserError, match=f"^data.{next(iter(wrong))} must be "):
            ImageData(**wrong)
    assert not ImageData().augmentation
