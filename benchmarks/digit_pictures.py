"""Write pictures of digits, 28 x 28 grey pixels, in matplotlib's fonts, turned, sheared and with noise.

    python benchmarks/digit_pictures.py FOLDER [--count 10000] [--choose 0]

FOLDER gets train/, validation/ and test/, each with one sub-folder per digit. A tenth of the number for training is for
validation, a fifth for testing. Test pictures have fonts that no other picture has. With --choose, which is for
choosing settings, these are a third of the fonts for training, and half as many pictures as for training are for
testing.
"""

import argparse
from pathlib import Path

import matplotlib
import numpy as np
from PIL import Image, ImageDraw, ImageFont

FONTS = Path(matplotlib.get_data_path(), "fonts", "ttf")
#: Sizes in pixels: of a picture, and of its digit before it is transformed.
SIDE, LARGE = 28, 64


def fonts() -> list[Path]:
    """Fonts with digits, sorted."""
    families = ("DejaVuSans", "DejaVuSerif", "STIXGeneral", "cmb", "cmr", "cmss", "cmti", "cmtt")
    return sorted(path for path in FONTS.glob("*.ttf") if path.name.startswith(families) and "Display" not in path.name)


def picture(digit: int, font: Path, random: np.random.Generator) -> Image.Image:
    """Draw a digit."""
    letters = ImageFont.truetype(str(font), round(LARGE * random.uniform(0.5, 0.9)))
    drawn = Image.new("L", (LARGE, LARGE))
    ImageDraw.Draw(drawn).text((LARGE / 2, LARGE / 2), str(digit), fill=255, font=letters, anchor="mm")
    angle, shear = random.normal(0, 0.25), random.normal(0, 0.25)
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    matrix = turn @ np.array([[1, shear], [0, random.uniform(0.8, 1.25)]])
    offset = LARGE / 2 - matrix @ np.full(2, LARGE / 2) + random.normal(0, 4, 2)
    rows = [*matrix[0], offset[0], *matrix[1], offset[1]]
    small = drawn.transform((LARGE, LARGE), Image.Transform.AFFINE, rows, Image.Resampling.BILINEAR)
    pixels = np.asarray(small.resize((SIDE, SIDE), Image.Resampling.BOX), np.float32)
    pixels = pixels * random.uniform(0.5, 1) + random.normal(0, random.uniform(0, 40), pixels.shape)
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--count", type=int, default=10_000, help="pictures for training")
    parser.add_argument("--choose", type=int, choices=range(3), help="no test fonts, but this third of the others")
    given = parser.parse_args()
    random, known, other = np.random.default_rng(0), fonts()[::2], fonts()[1::2]
    if given.choose is not None:
        random, other = np.random.default_rng(100 + given.choose), known[given.choose :: 3]
        known = [font for font in known if font not in other]
    kinds = {"train": known, "validation": known, "test": other}
    shares = (1, 10, 5 if given.choose is None else 2)
    for (split, some), share in zip(kinds.items(), shares, strict=True):
        for number in range(given.count // share):
            digit = int(random.integers(10))
            path = given.folder / split / str(digit) / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture(digit, some[int(random.integers(len(some)))], random).save(path)


if __name__ == "__main__":
    main()
