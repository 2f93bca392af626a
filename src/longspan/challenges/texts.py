"""Text: the class of a text that is read byte by byte, such as a film review.

The first 4,000 bytes are read. Source: Tay et al. 2021 (https://arxiv.org/abs/2011.04006), with the reviews of Maas et
al. 2011. Deviation: a tenth of the training texts is held out, where the paper validates on the test split.
"""

from collections.abc import Mapping
from pathlib import Path

from longspan.challenges.base import Challenge, Data
from longspan.challenges.classes import Labelled, text_of

BYTES = 4_000


class Texts(Challenge):
    """Texts with a label each, as bytes."""

    name = "text"
    description = "Class of a text, read byte by byte, such as a film review (2 classes)."
    needs = "a folder with train/ and test/, each with a sub-folder of text files per class, such as aclImdb"
    length = BYTES
    settings = ("data.tokens=bytes", f"data.max_length={BYTES}")

    def open(self, given: Path | None, seed: int, sizes: Mapping[str, int]) -> Data:
        assert given is not None
        return Labelled(self.name, given, seed, sizes, (".txt",), text_of)
