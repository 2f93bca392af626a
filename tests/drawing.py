"""Pictures that tests have drawn."""

from pathlib import Path

from PIL import Image


def drawn(path: Path) -> tuple[int, int]:
    """Return the width and height of a picture, which must not be blank."""
    with Image.open(path) as picture:
        darkest, brightest = picture.convert("L").getextrema()
        assert darkest != brightest
        return picture.size
