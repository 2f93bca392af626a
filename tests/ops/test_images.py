"""Images as arrays and as sequences of patches."""

import numpy as np
import pytest
from PIL import Image

from longspan.ops.images import image_of, pixels, scan, sequence


def test_hilbert_curve_of_a_square_goes_from_neighbour_to_neighbour() -> None:
    for side in (1, 2, 4, 16):
        cells = scan(side, side, "hilbert").astype(int)
        assert len({*map(tuple, cells.tolist())}) == side * side
        assert np.abs(np.diff(cells, axis=0)).sum(1).tolist() == [1] * (side * side - 1)
    assert scan(2, 2, "hilbert").tolist() == [[0, 0], [1, 0], [1, 1], [0, 1]]


@pytest.mark.parametrize("order", ["rows", "both", "hilbert"])
def test_every_cell_is_visited(order: str) -> None:
    cells = [*map(tuple, scan(3, 5, order).tolist())]
    assert sorted(cells) == sorted([(row, column) for row in range(3) for column in range(5)] * (1 + (order == "both")))
    if order == "both":
        assert cells[:15] == cells[:14:-1]


def test_patches_have_their_pixels_row_by_row() -> None:
    array = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3)
    found, places = sequence(array, 2, "rows")
    assert found.shape == (6, 12)
    for patch, (row, column) in zip(found, places, strict=True):
        expected = array[2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        assert patch.tolist() == expected.reshape(-1).tolist()


def test_the_edge_fills_the_last_patches() -> None:
    found, places = sequence(np.array([[[1], [2], [3]]], np.uint8), 2, "rows")
    assert found.tolist() == [[1, 2, 1, 2], [3, 3, 3, 3]]
    assert places.tolist() == [[0, 0], [0, 1]]


def test_arrays_of_all_kinds_are_one_image() -> None:
    wanted = np.array([[[0, 51, 255]] * 3] * 2, np.uint8)
    for given in (
        wanted,
        wanted.tolist(),
        wanted / 255,
        wanted.astype(np.int64),
        wanted.astype(np.uint16) * 257,
        np.moveaxis(wanted, 2, 0)[:, :, :2],
    ):
        found = np.asarray(image_of(given))
        assert found[:2, :2].tolist() == wanted[:2, :2].tolist()
    assert image_of(np.eye(4, dtype=bool)).mode == "L"
    for bad in (np.zeros(3), np.zeros((2, 2, 5)), np.full((2, 2), 1.5), np.full((2, 2), 256), np.full((2, 2), np.nan)):
        with pytest.raises(ValueError, match=r"shape|outside"):
            image_of(bad)


def test_modes_become_colours_and_grey_levels() -> None:
    red = Image.new("RGB", (4, 3), (255, 0, 0))
    assert pixels(red, "rgb", 8).tolist() == [[[255, 0, 0]] * 4] * 3
    # ITU-R 601: 0.299 of red.
    assert pixels(red, "grey", 8).tolist() == [[[76]] * 4] * 3
    assert pixels(red.quantize(4), "rgb", 8).tolist() == [[[255, 0, 0]] * 4] * 3
    clear = Image.new("RGBA", (2, 1), (255, 0, 0, 0))
    clear.putpixel((1, 0), (0, 0, 255, 255))
    assert pixels(clear, "rgb", 8).tolist() == [[[255, 255, 255], [0, 0, 255]]]
    deep = Image.fromarray(np.array([[0, 257 * 100, 65535]], np.uint16))
    assert pixels(deep, "grey", 8).reshape(-1).tolist() == [0, 100, 255]


def test_large_images_are_scaled_down_in_proportion() -> None:
    assert pixels(Image.new("L", (100, 40)), "grey", 10).shape == (4, 10, 1)
    assert pixels(Image.new("L", (100, 1)), "grey", 10).shape == (1, 10, 1)
    assert pixels(Image.new("L", (10, 7)), "grey", 10).shape == (7, 10, 1)


def test_exif_turns_an_image() -> None:
    image = Image.fromarray(np.array([[0, 100, 200]], np.uint8))
    image.getexif()[0x0112] = 6
    assert pixels(image, "grey", 8).reshape(3).tolist() == [0, 100, 200]
    assert pixels(image, "grey", 8).shape == (3, 1, 1)
