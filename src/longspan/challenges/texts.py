"""Text: the class of a document, read byte by byte.

Source: Tay et al. 2021 (https://arxiv.org/abs/2011.04006), with the movie reviews of Maas et al. 2011
(https://aclanthology.org/P11-1015) and sequences of at most 4,000 bytes. Texts are written whole: the bytes are counted
and cut where a model is trained.

Deviation: The published code validates on the test reviews, as this data set has no others. Here a tenth of the
training reviews, drawn from each class, is held out.
"""

from collections.abc import Mapping
from pathlib import Path

from longspan.challenges.base import Challenge, Data
from longspan.challenges.class_folders import ClassFolders
from longspan.data.sources.files.decoding import NotText
from longspan.data.sources.files.opening import read_document
from longspan.data.sources.formats.folders import DocumentFile
from longspan.errors import UserError


class Texts(Challenge):
    """Documents of a folder."""

    name = "text"
    description = "Class of a document, read byte by byte, such as the sentiment of a movie review (2 classes)."
    needs = "a folder with train/ and test/, each with one sub-folder of texts per class, such as aclImdb"
    length = 4_000
    settings = ("data.tokens=bytes", f"data.max_length={length}")

    def open(self, given: Path | None, seed: int, sizes: Mapping[str, int]) -> Data:
        assert given is not None
        return _Documents(self, given, seed, sizes)


class _Documents(ClassFolders):
    def text(self, file: DocumentFile) -> str:
        return read_text(file)


def read_text(file: DocumentFile) -> str:
    """Return the text of a file in UTF-8; raise UserError if it is not text, or empty."""
    try:
        text = read_document(Path(file.path), "utf-8").text
    except NotText as error:
        found = error.problem if error.byte is None else f"other bytes (byte {error.byte})"
        raise UserError(
            f"expected text in UTF-8 in {file.path!r}, got {found}; save it as UTF-8, or remove it."
        ) from None
    if not text.strip():
        raise UserError(f"expected a text in {file.path!r}, got an empty file; remove it.")
    return text
