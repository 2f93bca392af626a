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


@pytest.mark.parametrize("shape", [(9, 14, 3), (12, 7, 1), (1, 1, 3)])
def test_warps_keep_the_size_and_the_middle_and_fill_the_gap(shape: tuple[int, int, int]) -> None:
    # One colour stays one, as gaps show the mirrored image.
    plain = np.full(shape, 200, np.uint8)
    assert all((one == plain).all() for one in drawn(Augmentation(warp=1.0), plain))
    varied = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
    found = drawn(Augmentation(warp=1e-9), varied)
    # Interpolation with a tiny share of a neighbour rounds.
    assert all(np.abs(one.astype(int) - varied).max() <= 1 for one in found)


def test_warps_turn_shear_and_stretch_around_the_middle() -> None:
    square = np.zeros((60, 60, 1), np.uint8)
    square[20:40, 20:40] = 255
    found = drawn(Augmentation(warp=0.2), square)
    assert len({one.tobytes() for one in found}) == len(found)
    for one in found:
        # Turns and shears keep an area, and each side becomes at most e^0.2 times as long or short. Interpolation
        # blurs the edge symmetrically.
        area = one.sum() / square.sum()
        assert np.exp(-0.4) * 0.99 < area < np.exp(0.4) * 1.01
        rows, columns = np.nonzero(one[:, :, 0] > 127)
        # Edges are at whole pixels.
        assert abs(rows.mean() - 29.5) < 0.5
        assert abs(columns.mean() - 29.5) < 0.5


def test_warps_grow_over_twenty_epochs() -> None:
    change = Augmentation(warp=0.2, shift=3)
    assert [change.in_epoch(epoch).warp for epoch in (0, 10, 20, 21)] == [0, 0.1, 0.2, 0.2]
    assert change.in_epoch(20) == change


def test_images_that_are_mirrored_by_decision_are_not_warped() -> None:
    data = ImageData(flip="auto", warp=0.2)
    assert data.decided(True).augmentation == Augmentation(flip=True)
    assert data.decided(False).augmentation == Augmentation(warp=0.2)


def test_mixup_is_a_weighted_mean_with_an_image_of_any_size() -> None:
    random = np.random.default_rng(0)
    black, white = np.zeros((4, 6, 3), np.uint8), np.full((9, 2, 3), 255, np.uint8)
    found, share = Augmentation(mixup=0.5).mixed(black, white, random)
    assert found.shape == black.shape
    assert 0 < share < 1
    assert set(found.reshape(-1).tolist()) == {round(share * 255)}
    assert resized(black, 4, 6) is black


def test_values_out_of_range_are_refused() -> None:
    wrong_ones = ({"crop": 0.0}, {"crop": 1.5}, {"mixup": -1.0}, {"warp": -0.1}, {"warp": 1.5}, {"shift": -1})
    for wrong in (*wrong_ones, {"max_side": 0}, {"patch_size": 0}):
        with pytest.raises(UserError, match=f"^data.{next(iter(wrong))} must be "):
            ImageData(**wrong)
    assert not ImageData().augmentation
