"""Folders of text files, each one document: which files there are, in what order, and of which class."""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from longspan.data.opening import NotText, broken, examine, nearest, printable, read_document, suffix
from longspan.data.schema import Row, Schema
from longspan.errors import UserError

# fmt: off
TEXT = frozenset((
    ".txt", ".text", ".md", ".markdown", ".rst", ".tex", ".org", ".adoc", ".tokens", ".raw", ".html", ".htm", ".xml",
    ".json", ".yaml", ".yml", ".toml", ".py", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".java", ".kt", ".js", ".ts",
    ".go", ".rs", ".rb", ".php", ".pl", ".r", ".jl", ".scala", ".swift", ".lua", ".sql", ".sh",
))
# fmt: on
"""Suffixes of text files, by which a folder's documents are told from what else it holds."""

SPLIT_NAMES = {"train": "train", "validation": "validation", "valid": "validation", "dev": "validation", "test": "test"}
"""What folders and files are called that are splits."""

_RATING = re.compile(r"\d+_(\d+)\.txt")


class DocumentFile(NamedTuple):
    """A file that is one document: its path, its label, its place for messages, its size in bytes and its time."""

    path: str
    label: str
    where: str
    size: int
    mtime_ns: int


class Listed(NamedTuple):
    """A file in a folder, not looked at yet: its path, and its place within the folder."""

    path: str
    where: str


def list_files(folder: Path | os.DirEntry[str], prefix: str = "") -> list[Listed]:
    """List what is in a folder and the folders in it, in order of names, but for hidden files and folders.

    Args:
        folder: The folder.
        prefix: What `where` begins with.

    Raises:
        UserError: A folder cannot be read, or contains itself by a link.
    """
    return _list(folder, prefix, ())


def _list(folder: Path | os.DirEntry[str], prefix: str, above: tuple[tuple[int, int], ...]) -> list[Listed]:
    found: list[Listed] = []
    facts = examine(Path(folder))
    own = (facts.st_dev, facts.st_ino)
    if own in above:
        raise UserError(f"{os.fspath(folder)!r} is a link to a folder that contains it: remove the link.")
    for entry in visible(folder):
        where = prefix + printable(entry.name)
        if is_folder(entry):
            found += _list(entry, f"{where}/", (*above, own))
        else:
            found.append(Listed(entry.path, where))
    return found


def visible(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    """Return what is in a folder, in order of names, but for what is hidden."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(
            f"expected to read the folder {os.fspath(folder)!r}, but that fails: {error.strerror}."
        ) from None


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Say whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:
        # A link that leads nowhere is for those to name who look at it.
        return False


def sub_folders(folder: Path) -> list[str]:
    """Return the names of the folders in a folder."""
    return [entry.name for entry in visible(folder) if is_folder(entry)]


def document_file(path: Path | str, where: str, label: str = "") -> DocumentFile:
    """Look at a file that is a document; raise UserError if it is not a file."""
    facts = examine(Path(path))
    if stat.S_ISDIR(facts.st_mode):
        raise UserError(f"expected a file, but {str(path)!r} is a folder.")
    return DocumentFile(str(path), label, where, facts.st_size, facts.st_mtime_ns)


def list_texts(root: Path, files: Sequence[Listed]) -> list[DocumentFile]:
    """Return those of a folder's files that are text files by their suffix.

    Raises:
        UserError: There are none, or one cannot be read.
    """
    texts = [document_file(*file) for file in files if is_text(file)]
    if not texts:
        other = f"none among its {len(files)} files (such as {files[0].where})" if files else "it is empty"
        raise UserError(
            f"expected text files (.txt, .md, .py and the like) in the folder {str(root)!r}, but {other}: give another "
            "folder, or a file by its own name."
        )
    return texts


def is_text(file: Listed) -> bool:
    """Say whether a file is text, by its suffix."""
    return suffix(Path(file.path)) in TEXT


def list_splits(files: Sequence[Listed]) -> dict[str, list[Listed]]:
    """Return the files of each split that the names of folders, or else of files, tell; nothing if they do not."""
    splits: dict[str, list[Listed]] = {}
    if any(file.where.startswith("train/") for file in files):
        for file in files:
            folder, inside, _ = file.where.partition("/")
            if inside and folder in SPLIT_NAMES:
                splits.setdefault(SPLIT_NAMES[folder], []).append(file)
        return splits
    for file in filter(is_text, files):
        folder, inside, name = file.where.rpartition("/")
        if name.lower().startswith("readme"):
            continue
        words = {folder.partition("/")[0]} if inside else set(re.split(r"[._-]", name))
        named = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
        # A folder of tests, test_a.py and test_b.py, is not a split.
        if len(named) != 1 or (not inside and named <= splits.keys()):
            return {}
        splits.setdefault(named.pop(), []).append(file)
    return splits if len(splits) > 1 else {}


def list_classes(root: Path, label_column: str, prefix: str = "") -> list[DocumentFile]:
    """List the files of a folder with one sub-folder per class, in order of their names, without opening them.

    Hidden files and folders are passed over, and so is unsup/, where aclImdb keeps documents without label.

    Args:
        root: The folder.
        label_column: "label" for the sub-folder's name, "rating" for the number in file names like 12_9.txt.
        prefix: What `where` begins with, such as "train/".

    Raises:
        UserError: No sub-folders, no files in them, another `label_column`, a file name without a rating, or what is
            not a file.
    """
    if label_column not in ("label", "rating"):
        raise UserError(
            f"a folder of classes has the columns 'text', 'label' and 'rating', but data.label_column is "
            f"{label_column!r}: {nearest(label_column, ['label', 'rating']) or 'leave it out.'}"
        )
    classes = [entry for entry in visible(root) if is_folder(entry) and entry.name != "unsup"]
    if not classes:
        raise UserError(
            f"expected one sub-folder of text files per class in {str(root)!r}, but it has no sub-folders: sort the "
            "files into folders, or give a csv, tsv, jsonl or parquet file."
        )
    found = [
        document_file(*file, printable(folder.name))
        for folder in classes
        for file in list_files(folder, f"{prefix}{printable(folder.name)}/")
    ]
    if not found:
        raise UserError(f"expected text files in the sub-folders of {str(root)!r}, but they are empty.")
    return [_rated(file) for file in found] if label_column == "rating" else found


def _rated(file: DocumentFile) -> DocumentFile:
    match = _RATING.fullmatch(Path(file.path).name)
    if match is None:
        raise UserError(
            f"data.label_column='rating' expects file names like 12_9.txt (ID_RATING.txt), but got {file.where!r}: "
            "use data.label_column=label, the folder's name."
        )
    return file._replace(label=match[1])


def read_files(files: Sequence[DocumentFile], schema: Schema) -> Iterator[Row]:
    """Read documents one at a time, unpacked; their classes are the files' labels.

    Raises:
        UserError: A file cannot be read, or not be unpacked.
    """
    text, label = schema.documents("a folder of text files")
    for file in files:
        try:
            content = read_document(Path(file.path), schema.encoding)
        except NotText as error:
            yield Row({}, f"{file.where}, byte {error.byte}", broken(schema.encoding))
            continue
        cells = {schema.names[text.name]: content}
        if label is not None:
            cells[schema.names[label.name]] = file.label
        yield schema.row(cells, file.where, Path(file.path).parent)
