"""Features of images: `PicturePart`."""

import numpy as np
import pytest
import torch

from longspan.models.wide.pictures import CELLS, COLOUR_CELLS, DIRECTIONS, PicturePart
from longspan.ops.images import sequence


def _image(height: int, width: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3)).astype(np.uint8)


def _streams(image: np.ndarray, patch: int = 4) -> dict[str, torch.Tensor]:
    patches, places = sequence(image, patch, "rows")
    return {"pixel_values": torch.from_numpy(patches)[None], "coordinates": torch.tensor(places)[None]}


def _reference(image: np.ndarray) -> np.ndarray:
    """The features pixel by pixel, in float64."""
    height, width, _ = image.shape
    pixels = image / 255
    grey = pixels.mean(2)
    cells = np.zeros((CELLS, CELLS, DIRECTIONS))
    for row in range(1, height - 1):
        for column in range(1, width - 1):
            down, right = grey[row + 1, column] - grey[row - 1, column], grey[row, column + 1] - grey[row, column - 1]
            place = np.arctan2(down, right) % np.pi / (np.pi / DIRECTIONS)
            lower, size = int(place), np.hypot(down, right)
            cell = cells[row * CELLS // height, column * CELLS // width]
            cell[lower % DIRECTIONS] += size * (1 - place + lower)
            cell[(lower + 1) % DIRECTIONS] += size * (place - lower)
    cells /= max(1, height * width / CELLS**2)
    energy = np.pad(np.square(cells).sum(2), 1)
    found = np.zeros_like(cells)
    for row in range(CELLS):
        for column in range(CELLS):
            blocks = [energy[row + i : row + i + 2, column + j : column + j + 2].sum() for i in (0, 1) for j in (0, 1)]
            found[row, column] = cells[row, column] * np.mean(1 / np.sqrt(np.array(blocks) + 1e-4))
    moments = []
    for moment in (np.mean, np.std):
        for channel in range(3):
            for row in range(COLOUR_CELLS):
                for column in range(COLOUR_CELLS):
                    rows = [i for i in range(height) if i * COLOUR_CELLS // height == row]
                    columns = [i for i in range(width) if i * COLOUR_CELLS // width == column]
                    part = pixels[np.ix_(rows, columns)][..., channel]
                    moments.append(moment(part) if part.size else 0)
    return np.concatenate([found.ravel(), moments])


@pytest.mark.parametrize(("height", "width"), [(32, 32), (12, 20), (4, 4)])
def test_features_are_those_of_the_formula(height: int, width: int) -> None:
    image = _image(height, width)
    found = PicturePart(4, 48, 3).features(None, None, **_streams(image))[0]
    # float32; deviations are roots of differences of squares that cancel.
    np.testing.assert_allclose(found.numpy(), _reference(image), rtol=1e-4, atol=1e-3)


def test_tiny_images_have_colours_alone() -> None:
    found = PicturePart(1, 3, 3).features(None, None, **_streams(_image(2, 1), patch=1))[0]
    gradients = CELLS**2 * DIRECTIONS
    assert not found[:gradients].any()
    assert found[gradients:].any()
    assert found.isfinite().all()


@pytest.mark.parametrize("left", [True, False])
def test_larger_images_of_a_batch_change_nothing(left: bool) -> None:
    part, small, large = PicturePart(4, 48, 3), _streams(_image(12, 8)), _streams(_image(24, 28, 1))
    length, whole = small["coordinates"].shape[1], large["coordinates"].shape[1]
    real = slice(whole - length, whole) if left else slice(length)
    mask = torch.ones(2, whole, dtype=torch.bool)
    mask[0] = False
    mask[0, real] = True
    batch = {name: torch.cat([torch.full_like(each, 3), each]) for name, each in large.items()}
    for name, each in small.items():
        batch[name][0, real] = each[0]
    found = part.features(mask, None, **batch)
    expected = torch.cat([part.features(None, None, **one) for one in (small, large)])
    torch.testing.assert_close(found, expected)


def test_patches_that_do_not_count_say_nothing() -> None:
    part, streams = PicturePart(4, 48, 3), _streams(_image(16, 16))
    counts = torch.ones(1, 16)
    counts[0, 5] = 0
    before = part.features(None, counts, **streams)
    streams["pixel_values"][0, 5] = 0
    torch.testing.assert_close(part.features(None, counts, **streams), before)
    assert not torch.equal(part.features(None, None, **streams), before)


def test_images_of_one_colour_have_derivatives() -> None:
    counts = torch.ones(1, 16, requires_grad=True)
    PicturePart(4, 48, 3).features(None, counts, **_streams(np.full((16, 16, 3), 200, np.uint8))).sum().backward()
    assert counts.grad is not None
    assert counts.grad.isfinite().all()


def test_rows_of_padding_are_zero() -> None:
    found = PicturePart(4, 48, 3).features(torch.zeros(1, 16, dtype=torch.bool), None, **_streams(_image(16, 16)))
    assert not found.any()
