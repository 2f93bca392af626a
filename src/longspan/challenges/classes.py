"""Files of a folder with train/ and test/, each with one sub-folder per class: `Labelled`."""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from longspan.challenges.base import SPLITS, Data, Row, asked, stream
from longspan.errors import UserError


class Labelled(Data):
    """One example for each file, with the name of its folder as the label.

    A tenth of the training files of each class, drawn by the seed, is for validation. Classes are the sub-folders that
    train/ and test/ both have.

    Args:
        name: Of the challenge.
        given: The folder.
        seed: Seed of all random choices.
        sizes: Numbers of examples by split, for the splits that are smaller than usual.
        kinds: Endings of the files that are read, such as ".txt".
        read: Returns the text of a file, or raises UserError.

    Raises:
        UserError: There are no such folders, fewer than two classes, or a class with fewer than two training files.
    """

    def __init__(
        self,
        name: str,
        given: Path,
        seed: int,
        sizes: Mapping[str, int],
        kinds: tuple[str, ...],
        read: Callable[[Path], str],
    ) -> None:
        self._name, self._seed, self._read = name, seed, read
        found = {half: _classes(given / half, kinds) for half in ("train", "test")}
        classes = sorted(found["train"].keys() & found["test"].keys())
        if len(classes) < 2:
            raise UserError(
                f"expected the folders train and test in {str(given)!r}, each with a sub-folder of {'/'.join(kinds)} "
                f"files for each of at least two classes, got {len(classes)} classes that both have; name another "
                "folder."
            )
        files: dict[str, list[tuple[Path, str]]] = {split: [] for split in SPLITS}
        for label in classes:
            own, held_out = found["train"][label], len(found["train"][label]) // 10 or 1
            if len(own) < 2:
                raise UserError(
                    f"expected at least two files in {str(given / 'train' / label)!r}, one of them for validation, got "
                    "one; add more."
                )
            chosen = set(stream(seed, name, "held out", label).sample(own, held_out))
            for path in own:
                files["validation" if path in chosen else "train"].append((path, label))
            files["test"] += [(path, label) for path in found["test"][label]]
        self._sizes = {split: asked(sizes, split, len(those)) for split, those in files.items()}
        self._files = files

    def size(self, split: str) -> int:
        return self._sizes[split]

    def rows(self, split: str) -> Iterator[Row]:
        files = list(self._files[split])
        stream(self._seed, self._name, split).shuffle(files)
        for path, label in files[: self._sizes[split]]:
            yield {"text": self._read(path), "label": label}

    def facts(self) -> dict[str, Any]:
        return {"classes": sorted({label for _, label in self._files["train"]})}


def _classes(folder: Path, kinds: tuple[str, ...]) -> dict[str, list[Path]]:
    """Return the files of each sub-folder that has some, sorted."""
    if not folder.is_dir():
        return {}
    found = {
        place.name: sorted(path for path in place.iterdir() if path.suffix.lower() in kinds)
        for place in folder.iterdir()
        if place.is_dir()
    }
    return {name: files for name, files in found.items() if files}


def text_of(path: Path) -> str:
    """Return the text of a file; raise UserError if it is no UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(
            f"expected text in UTF-8 in {str(path)!r}, got something else at byte {error.start}; save it as UTF-8."
        ) from None
