"""An image of Pillow in memory has the pixels that it has in a file, whatever its mode."""

import io
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from datasets import Dataset, Features
from datasets import Image as ImageFeature
from PIL import Image

from longspan.data.columns.pictures import Picture
from longspan.data.columns.values import BadCell
from longspan.data.images.decoding import decoded
from longspan.data.images.options import ImageData
from longspan.data.processor import Unreadable
from longspan.data.sources.in_memory import rows_of
from longspan.models.hub.image_processing import LongspanImageProcessor

RANDOM = np.random.default_rng(0)
RGBA = Image.fromarray(RANDOM.integers(0, 256, (6, 5, 4), np.uint8))
RGB, GREY = RGBA.convert("RGB"), RGBA.convert("L")
WIDE = RANDOM.integers(0, 1 << 16, (6, 5)).astype(np.uint16)
WIDE[0, 0], WIDE[0, 1] = 0, 65_535


def with_transparency(image: Image.Image, value: Any) -> Image.Image:
    image.info["transparency"] = value
    return image


#: By name: an image, the format of a file with the same content, and the image that is in this file if it is another.
IMAGES: dict[str, tuple[Image.Image, str, Image.Image | None]] = {
    "1": (GREY.convert("1"), "PNG", None),
    "L": (GREY, "PNG", None),
    "L, transparent": (with_transparency(GREY.copy(), GREY.getpixel((2, 2))), "PNG", None),
    "LA": (RGBA.convert("LA"), "PNG", None),
    "La": (RGBA.convert("LA").convert("La"), "PNG", RGBA.convert("LA").convert("La").convert("LA")),
    "P": (RGB.quantize(), "PNG", None),
    "P, transparent": (with_transparency(RGB.quantize(), 3), "PNG", None),
    "P, half transparent": (with_transparency(RGB.quantize(), bytes(range(100, 130))), "PNG", None),
    "PA": (RGBA.convert("PA"), "TIFF", None),
    "RGB": (RGB, "PNG", None),
    "RGB, transparent": (with_transparency(RGB.copy(), RGB.getpixel((1, 1))), "PNG", None),
    "RGBA": (RGBA, "PNG", None),
    "RGBa": (RGBA.convert("RGBa"), "PNG", RGBA.convert("RGBa").convert("RGBA")),
    "RGBX": (RGB.convert("RGBX"), "PNG", RGB),
    "CMYK": (RGB.convert("CMYK"), "TIFF", None),
    "YCbCr": (RGB.convert("YCbCr"), "TIFF", None),
    "HSV": (RGB.convert("HSV"), "PNG", RGB.convert("HSV").convert("RGB")),
    "LAB": (Image.frombytes("LAB", (5, 6), RGB.tobytes()), "TIFF", None),
    "I;16": (Image.fromarray(WIDE), "PNG", None),
    "I;16, transparent": (with_transparency(Image.fromarray(WIDE), int(WIDE[2, 2])), "PNG", None),
    "I;16 of TIFF": (Image.fromarray(WIDE), "TIFF", None),
    "I;16B": (Image.frombytes("I;16B", (5, 6), WIDE.astype(">u2").tobytes()), "TIFF", None),
    "I;16L": (Image.frombytes("I;16L", (5, 6), WIDE.astype("<u2").tobytes()), "TIFF", None),
    "I, 16 bits": (Image.fromarray(WIDE.astype(np.int32)), "TIFF", None),
    "I, 8 bits": (Image.fromarray(np.asarray(GREY).astype(np.int32)), "TIFF", None),
    "F": (Image.fromarray(np.asarray(GREY).astype(np.float32) / 255), "TIFF", None),
}


def in_memory(image: Any) -> dict[str, Any] | None:
    column = Picture("image", "image_column")
    return column.parse(column.cell([column.given(image)]), Path())


@pytest.mark.parametrize("colour", ["rgb", "grey"])
@pytest.mark.parametrize("name", IMAGES)
def test_in_memory_as_by_path(name: str, colour: str, tmp_path: Path) -> None:
    image, kind, saved = IMAGES[name]
    path = tmp_path / f"image.{kind.lower()}"
    (saved or image).save(path, kind)
    expected = decoded({"path": str(path), "bytes": None}, colour, 64)
    assert len(np.unique(expected)) > (1 if name == "1" else 4)
    for given in (image.copy(), Image.open(path)):
        found = in_memory(given)
        assert found is not None
        assert (decoded(found, colour, 64) == expected).all()
    # The image processor of transformers, with patches of one pixel.
    read = LongspanImageProcessor(colour, 64, 1)(image.copy())["pixel_values"][0]
    assert (read == expected.reshape(read.shape)).all()


@pytest.mark.parametrize("name", ["I;16", "I;16B", "I, 8 bits", "I, 16 bits", "F", "PA", "RGBA", "LA", "CMYK"])
def test_in_a_data_set_of_the_hub_as_in_memory(name: str) -> None:
    image = IMAGES[name][0]
    data = Dataset.from_dict({"image": [image]}, features=Features({"image": ImageFeature()}))
    (row,) = rows_of(data, [Picture("image", "image_column")], ImageData())
    expected = in_memory(image)
    assert expected is not None
    assert (decoded(row.values["image"], "rgb", 64) == decoded(expected, "rgb", 64)).all()


def test_what_the_pixels_are(tmp_path: Path) -> None:
    grey = np.asarray(GREY)
    for name, expected in (("I, 8 bits", grey), ("I;16B", WIDE >> 8), ("I, 16 bits", WIDE >> 8), ("F", grey)):
        image, kind, _ = IMAGES[name]
        image.save(tmp_path / "image", kind)
        assert (decoded({"path": str(tmp_path / "image"), "bytes": None}, "grey", 64)[:, :, 0] == expected).all()
    alpha = np.asarray(RGBA)[:, :, 3]
    assert alpha.min() < 20
    for name in ("PA", "RGBa", "LA"):
        found = in_memory(IMAGES[name][0])
        assert found is not None
        assert (decoded(found, "rgb", 64)[alpha == alpha.min()] > 200).all()


def test_sixteen_bits_of_other_files() -> None:
    # Pillow reads a dark PGM file of 16 bits as numbers of 32 bits, at most 255.
    dark = {"path": None, "bytes": b"P5 2 1 65535\n" + bytes([0, 200, 1, 0])}
    assert decoded(dark, "grey", 64).ravel().tolist() == [0, 1]


def test_twelve_bits_of_a_tiff_file() -> None:
    tags = {256: 2, 257: 1, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 1, 279: 3}
    entries = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in tags.items())
    # The numbers 0xFFF and 0x800.
    file = struct.pack("<2sHI", b"II", 42, 12) + b"\xff\xf8\x00\x00" + struct.pack("<H", len(tags)) + entries + bytes(4)
    image = Image.open(io.BytesIO(file))
    for picture in ({"path": None, "bytes": file}, in_memory(image)):
        assert picture is not None
        assert decoded(picture, "grey", 64).ravel().tolist() == [255, 128]


@pytest.mark.parametrize("values", [[-1, 0], [0, 70_000], [0, 2**31 - 1]])
def test_numbers_of_32_bits_out_of_range_are_refused(values: list[int]) -> None:
    image = Image.fromarray(np.array([values], np.int32))
    with pytest.raises(BadCell, match="whole numbers outside 0 to "):
        in_memory(image)
    file = io.BytesIO()
    image.save(file, "TIFF")
    with pytest.raises(Unreadable, match="whole numbers outside 0 to "):
        decoded({"path": None, "bytes": file.getvalue()}, "rgb", 64)
