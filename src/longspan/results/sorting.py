"""Copies of files in a folder for each predicted label: `FileSorter`."""

import shutil
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from longspan.errors import UserError
from longspan.results import Prediction
from longspan.results.outputs import folder_in, new_file
from longspan.results.predictions import ClassPrediction

#: Folder of files without a label.
UNSURE = "unsure"


class FileRow(Protocol):
    """A row that may be a whole file."""

    @property
    def where(self) -> str: ...

    @property
    def file(self) -> Path | None: ...


R = TypeVar("R", bound=FileRow)


class FileSorter:
    """Copies each file that a label is predicted for into a folder of this name; nothing is moved or replaced.

    A file keeps the folders it has below the source that was named. Files without a label are copied to `unsure`, those
    that could not be read to nowhere.

    Args:
        folder: The folder to make, with one folder for each label.
        sources: Files and folders that are read.

    Raises:
        UserError: The folder exists and is not empty, its parent is missing, or it is inside a source.
    """

    def __init__(self, folder: Path, sources: Sequence[Path | str]) -> None:
        if not folder.parent.is_dir():
            raise UserError(
                f"expected a folder at {str(folder.parent)!r} to make {folder.name!r} in, got none; make it."
            )
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"expected a new or empty folder to sort into, got {str(folder)!r}; name another one.")
        self.folder, self.counts = folder, Counter[str]()
        self._sources = [Path(source).expanduser() for source in sources]
        for source in self._sources:
            if folder.resolve().is_relative_to(source.resolve()):
                raise UserError(
                    f"expected a folder outside of the source {str(source)!r} to sort into, got {str(folder)!r}; name "
                    "another one."
                )
        self._files: deque[Path] = deque()

    def watch(self, rows: Iterable[R]) -> Iterator[R]:
        """Yield rows, and note which files they are.

        Raises:
            UserError: A row is not a whole file.
        """
        for row in rows:
            if row.file is None:
                raise UserError(f"expected files to sort, one document each, got {row.where}; name files or folders.")
            self._files.append(row.file)
            yield row

    def sort(self, predictions: Iterable[Prediction]) -> Iterator[Prediction]:
        """Yield the predictions for rows that were watched, each after its file was copied.

        Raises:
            UserError: Labels are no names of folders, or a file cannot be copied.
        """
        for prediction in predictions:
            file = self._files.popleft()
            assert isinstance(prediction, ClassPrediction)
            if prediction.probabilities is not None:
                if not self.counts:
                    _check_labels(prediction.probabilities)
                name = UNSURE if prediction.label is None else prediction.label
                self._copy(file, name)
                self.counts[name] += 1
            yield prediction

    def summary(self) -> str:
        """Sentence on the numbers of copies."""
        numbers = ", ".join(f"{count:,} in {name}/" for name, count in sorted(self.counts.items()))
        files = "1 file" if self.counts.total() == 1 else f"{self.counts.total():,} files"
        return f"copied {files} to {str(self.folder)!r}{': ' if numbers else ''}{numbers}"

    def _copy(self, file: Path, label: str) -> None:
        try:
            self.folder.mkdir(exist_ok=True)
            inside = next((file.relative_to(one) for one in self._sources if file.is_relative_to(one)), Path(file.name))
            # Of a file that is named itself, nothing is left.
            inside = inside if inside.name else Path(file.name)
            folder = folder_in(self.folder, label, *inside.parent.parts)
            target, number = folder / inside.name, 1
            while target.exists():
                number += 1
                target = folder / f"{inside.stem} ({number}){inside.suffix}"
            with file.open("rb") as source, new_file(target, binary=True) as copy:
                shutil.copyfileobj(source, copy)
            shutil.copystat(file, target)
        except OSError as error:
            raise UserError(
                f"{str(file)!r} cannot be copied to {str(self.folder)!r} ({error.strerror}); free space there, or name "
                "another folder."
            ) from error


def _check_labels(labels: Iterable[str]) -> None:
    for label in labels:
        if label in ("", ".", "..", UNSURE) or "/" in label or "\\" in label or "\0" in label:
            raise UserError(
                f"expected labels that can be names of folders, none of them {UNSURE!r}, got {label!r}; use --output "
                "FILE.csv instead."
            )
