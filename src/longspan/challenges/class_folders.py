"""Folders with `train` and `test`, each with one sub-folder of files per class: `ClassFolders`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from longspan.challenges.base import SPLITS, Challenge, Data, Row, examples_to_write, stream
from longspan.data.columns.media import Media
from longspan.data.sources.files.opening import examine
from longspan.data.sources.formats.folders import DocumentFile, list_classes, sub_folders
from longspan.errors import UserError

HELD_OUT = 10
"""One of so many files of each class in `train` is held out for validation."""


class ClassFolders(Data):
    """Files of a folder in three splits: a tenth of `train`, drawn from each class, is for validation.

    Other sub-folders, such as `train/unsup` of the movie reviews, are ignored. A subclass says what a file contains.

    Args:
        challenge: The challenge, for messages and random choices.
        given: The folder.
        seed: Seed of the random choices.
        sizes: Numbers of examples by split; splits that it does not name have all there are.
        media: The kind of files; None for texts.

    Raises:
        UserError: The folder has another form, or fewer files than `sizes` asks for.
    """

    def __init__(
        self, challenge: Challenge, given: Path, seed: int, sizes: Mapping[str, int], media: type[Media] | None = None
    ) -> None:
        examine(given)
        if not given.is_dir() or not {"train", "test"} <= {*sub_folders(given)}:
            got = "a file" if given.is_file() else f"no sub-folders {' and '.join(_absent(given))}"
            raise UserError(f"expected {challenge.needs} at {str(given)!r}, got {got}; name another folder.")
        train, test = (list_classes(given / part, "label", f"{part}/", media).files for part in ("train", "test"))
        classes = {file.label for file in train}
        if new := {file.label for file in test} - classes:
            raise UserError(
                f"expected the same classes in 'train' and 'test' of {str(given)!r}, got {sorted(new)[0]!r} only in "
                "'test'; add files of it to 'train', or remove it."
            )
        kept, held = _held_out(train, seed, challenge.name)
        self._files = {}
        for split, files in zip(SPLITS, (kept, held, test), strict=True):
            stream(seed, challenge.name, split).shuffle(files)
            self._files[split] = files[: examples_to_write(sizes, split, len(files))]

    def size(self, split: str) -> int:
        return len(self._files[split])

    def rows(self, split: str) -> Iterator[Row]:
        for file in self._files[split]:
            yield {"text": self.text(file), "label": file.label}

    def text(self, file: DocumentFile) -> str:
        """Return the text of an example; raise UserError if its file cannot be read."""
        raise NotImplementedError


def _absent(given: Path) -> list[str]:
    return [repr(part) for part in ("train", "test") if part not in sub_folders(given)]


def _held_out(train: list[DocumentFile], seed: int, name: str) -> tuple[list[DocumentFile], list[DocumentFile]]:
    """Return the files that stay, and those held out."""
    source, classes = stream(seed, name, "held out"), dict[str, list[DocumentFile]]()
    for file in train:
        classes.setdefault(file.label, []).append(file)
    kept, held = list[DocumentFile](), list[DocumentFile]()
    for label, files in classes.items():
        if len(files) < 2:
            raise UserError(
                f"expected at least 2 files of each class in 'train', got 1 of {label!r}; one is held out for "
                "validation, so add more."
            )
        source.shuffle(files)
        number = max(1, round(len(files) / HELD_OUT))
        held += files[:number]
        kept += files[number:]
    return kept, held
