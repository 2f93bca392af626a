"""Image files: what is read, and one sentence for what cannot be."""

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from longspan.data.images import decoding
from longspan.data.images.decoding import decoded
from longspan.data.processor import Unreadable


def bytes_of(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def read(content: bytes, side: int = 64) -> np.ndarray:
    return decoded({"path": None, "bytes": content}, "rgb", side)


NOISE = Image.fromarray(np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8))


@pytest.mark.parametrize("kind", ["PNG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "JPEG"])
def test_formats(kind: str) -> None:
    found = read(bytes_of(NOISE, kind, **({"lossless": True} if kind == "WEBP" else {})))
    assert found.shape == (30, 40, 3)
    if kind not in ("JPEG", "GIF"):
        assert (found == np.asarray(NOISE)).all()


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP"])
def test_animated_files_are_no_image(kind: str) -> None:
    content = bytes_of(NOISE, kind, save_all=True, append_images=[Image.new("RGB", NOISE.size)])
    with pytest.raises(Unreadable, match=r"^expected a single image in the bytes, got 2 frames; save one of them"):
        read(content)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
def test_truncated_files_are_named(kind: str, tmp_path: Path) -> None:
    content = bytes_of(NOISE, kind)
    path = tmp_path / "cut.png"
    path.write_bytes(content[: len(content) * 2 // 3])
    with pytest.raises(Unreadable, match=f"^expected an image such as .* in {re.escape(repr(str(path)))}, got"):
        decoded({"path": str(path), "bytes": None}, "rgb", 64)


def test_other_formats_and_missing_files_are_named(tmp_path: Path) -> None:
    for content in (b"no image", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n", b"<svg/>", b"\x89PNG\r\n\x1a\n"):
        with pytest.raises(Unreadable, match=r"^expected an image such as .*; restore it\.$"):
            read(content)
    with pytest.raises(Unreadable, match="got no such file; restore it"):
        decoded({"path": str(tmp_path / "gone.png"), "bytes": None}, "rgb", 64)


def test_decompression_bombs_are_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "MOST_PIXELS", 1000)
    with pytest.raises(Unreadable, match=r"^expected an image of at most 1,000 pixels in the bytes, got a larger one"):
        read(bytes_of(NOISE, "PNG"))
    # The header of a PNG file says 30,000 x 30,000, which Pillow refuses before anything is decoded.
    bomb = bytearray(bytes_of(Image.new("L", (1, 1)), "PNG"))
    bomb[16:24] = (30_000).to_bytes(4, "big") * 2
    for module_limit in (False, True):
        if module_limit:
            monkeypatch.setattr(decoding, "MOST_PIXELS", 89_478_485)
        with pytest.raises(Unreadable):
            read(bytes(bomb))
