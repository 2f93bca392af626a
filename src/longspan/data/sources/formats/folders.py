"""Folders of text files, one document each: their files in order, with their classes."""

import os
import re
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from longspan.data.columns.kinds import Column, Label, Text
from longspan.data.columns.media import Media
from longspan.data.sources.files.decoding import NotText
from longspan.data.sources.files.documents import NEEDS, lacks_package
from longspan.data.sources.files.encodings import AUTO, encoding_together
from longspan.data.sources.files.opening import examine, open_packed, read_document, suffix
from longspan.data.sources.formats.schema import Row, Schema
from longspan.errors import UserError, did_you_mean
from longspan.machine.printing import printable

# fmt: off
OTHER = frozenset((
    # Tables, which are read row by row when they are named themselves.
    ".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".arrow", ".feather", ".numbers", ".db", ".sqlite",
    # Pictures, sound, film and fonts.
    ".png", ".jpg", ".jpeg", ".gif", ".bmp", ".tif", ".tiff", ".webp", ".ico", ".svg", ".heic", ".psd",
    ".wav", ".mp3", ".flac", ".ogg", ".m4a", ".mp4", ".avi", ".mov", ".mkv", ".webm", ".ttf", ".otf", ".woff", ".woff2",
    # Documents of other programs, archives, programs, weights.
    ".ps", ".doc", ".odg", ".ppt", ".pages", ".key", ".mobi", ".tar", ".tgz", ".bz2", ".7z", ".rar", ".jar",
    ".whl", ".iso", ".exe", ".dll", ".so", ".dylib", ".a", ".o", ".obj", ".class", ".pyc", ".pyd", ".bin", ".lock",
    ".npy", ".npz", ".pt", ".pth", ".ckpt", ".pkl", ".safetensors", ".onnx", ".gguf", ".h5", ".hdf5",
))
# fmt: on
"""Suffixes of what is no document: every other visible file of a folder is one, whatever its suffix."""

SPLIT_NAMES = {
    "train": "train",
    "validation": "validation",
    "valid": "validation",
    "val": "validation",
    "dev": "validation",
    "test": "test",
}
"""Splits by the names of their folders and files."""

_RATING = re.compile(r"\d+_(\d+)\.txt")


class DocumentFile(NamedTuple):
    """A file with one document: its absolute path, label, place for messages, size in bytes and modification time."""

    path: str
    label: str
    where: str
    size: int
    mtime_ns: int


class Listed(NamedTuple):
    """A file in a folder, not examined yet: its path, and its place within the folder."""

    path: str
    where: str


def list_files(folder: Path | os.DirEntry[str], prefix: str = "") -> list[Listed]:
    """List the files in a folder and its sub-folders, in order of names, without hidden files and folders.

    Args:
        folder: The folder.
        prefix: The beginning of each `where`.

    Raises:
        UserError: A folder cannot be read, or contains itself through a link.
    """
    return _list(folder, prefix, ())


def _list(folder: Path | os.DirEntry[str], prefix: str, above: tuple[tuple[int, int], ...]) -> list[Listed]:
    found: list[Listed] = []
    facts = examine(Path(folder))
    own = (facts.st_dev, facts.st_ino)
    if own in above:
        raise UserError(f"{os.fspath(folder)!r} is a link to a folder that contains it; remove the link.")
    for entry in visible(folder):
        where = prefix + printable(entry.name)
        if is_folder(entry):
            found += _list(entry, f"{where}/", (*above, own))
        else:
            found.append(Listed(entry.path, where))
    return found


def visible(folder: Path | os.DirEntry[str]) -> list[os.DirEntry[str]]:
    """Return the entries of a folder in order of names, without hidden ones and the locks of open office files."""
    try:
        with os.scandir(folder) as entries:
            shown = (entry for entry in entries if not entry.name.startswith((".", "~$")))
            return sorted(shown, key=lambda entry: entry.name)
    except OSError as error:
        raise UserError(
            f"expected to read the folder {os.fspath(folder)!r}, got an error ({error.strerror}); check it."
        ) from None


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a folder, or a link to one."""
    try:
        return entry.is_dir()
    except OSError:
        # Whoever examines a broken link reports it.
        return False


def sub_folders(folder: Path) -> list[str]:
    """Return the names of a folder's sub-folders."""
    return [entry.name for entry in visible(folder) if is_folder(entry)]


def document_file(path: Path | str, where: str, label: str = "") -> DocumentFile:
    """Examine a file with one document; raise UserError if it is not a file."""
    facts = examine(Path(path))
    if stat.S_ISDIR(facts.st_mode):
        raise UserError(f"expected a file, got the folder {str(path)!r}; choose a file.")
    # A path is relative to the working folder, but as a cell it would be relative to the file's own folder.
    return DocumentFile(str(Path(path).absolute()), label, where, facts.st_size, facts.st_mtime_ns)


class Documents(NamedTuple):
    """The files of a folder that are documents, and how many others there are, by suffix: see `OTHER`.

    Remarks are sentences about what else of the folder is not read.
    """

    files: list[DocumentFile]
    others: dict[str, int]
    remarks: tuple[str, ...] = ()


def list_texts(root: Path, files: Sequence[Listed], media: type[Media] | None = None) -> Documents:
    """Files of a folder that are documents, or media of a kind.

    Raises:
        UserError: No files found, or one cannot be read.
    """
    texts = [document_file(*file) for file in files if is_wanted(file, media)]
    others = _unread_suffixes(files, media)
    if not texts:
        raise UserError(
            f"expected {_named(media)} in the folder {str(root)!r}, got {_described(others) or 'an empty folder'}; "
            "choose another folder, or name files themselves."
        )
    return Documents(texts, others)


def is_text(file: Listed) -> bool:
    """Return whether a file of a folder is a document that can be read, according to its suffix."""
    found = suffix(Path(file.path))
    return found not in OTHER and not lacks_package(found)


def is_wanted(file: Listed, media: type[Media] | None) -> bool:
    """Return whether a file of a folder is one of these media, or a document if there are none."""
    return is_text(file) if media is None else suffix(Path(file.path)) in media.suffixes


def media_of(column: Text | Media) -> type[Media] | None:
    """Return the kind of media in a column; None for texts."""
    return type(column) if isinstance(column, Media) else None


def _named(media: type[Media] | None) -> str:
    return "text files" if media is None else media.files


def _unread_suffixes(files: Iterable[Listed], media: type[Media] | None) -> dict[str, int]:
    return dict(Counter(suffix(Path(file.path)) for file in files if not is_wanted(file, media)))


def _described(others: dict[str, int]) -> str:
    return f"only others ({', '.join(sorted(others)[:5])})" if others else ""


def list_splits(files: Sequence[Listed]) -> dict[str, list[Listed]]:
    """Return the files of each split, according to the names of folders or else of files; nothing if they name none."""
    splits: dict[str, list[Listed]] = {}
    if any(file.where.startswith("train/") for file in files):
        for file in files:
            folder, inside, _ = file.where.partition("/")
            if inside and folder in SPLIT_NAMES:
                splits.setdefault(SPLIT_NAMES[folder], []).append(file)
        return splits
    for file in filter(is_text, files):
        if file.where.rpartition("/")[2].lower().startswith("readme"):
            continue
        split = split_of(file.where)
        # A folder of tests, such as test_a.py and test_b.py, is not a split.
        if not split or ("/" not in file.where and split in splits):
            return {}
        splits.setdefault(split, []).append(file)
    return splits if len(splits) > 1 else {}


def split_of(where: str) -> str:
    """Split that a file's place in its folder names: its first folder, or else a word of its name; "" for none."""
    folder, inside, _ = where.partition("/")
    words = {folder} if inside else set(re.split(r"[._-]", where))
    named = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
    return named.pop() if len(named) == 1 else ""


def list_classes(root: Path, label_column: str, prefix: str = "", media: type[Media] | None = None) -> Documents:
    """List the documents, or media, of a folder with one sub-folder per class, in order of names, without opening them.

    Hidden files and folders are skipped, and so is unsup/, where aclImdb keeps documents without labels.

    Args:
        root: The folder.
        label_column: "label" for the sub-folder's name, "rating" for the number in file names like 12_9.txt.
        prefix: The beginning of each `where`, such as "train/".
        media: The kind of media; None for documents.

    Raises:
        UserError: There are no sub-folders or no files in them, `label_column` is another, a file name has no rating,
            or an entry is not a file.
    """
    if label_column not in ("label", "rating"):
        raise UserError(
            f"data.label_column must be 'label' or 'rating' for a folder of classes, got {label_column!r}; "
            + (did_you_mean(label_column, ["label", "rating"]) or "leave it out.")
        )
    classes = [entry for entry in visible(root) if is_folder(entry) and entry.name != "unsup"]
    if not classes:
        raise UserError(
            f"expected one sub-folder of {_named(media)} per class in {str(root)!r}, got no sub-folders; sort the "
            "files into folders, or use a csv, tsv, jsonl or parquet file."
        )
    files = [
        (file, printable(folder.name))
        for folder in classes
        for file in list_files(folder, f"{prefix}{printable(folder.name)}/")
    ]
    found = [document_file(*file, label) for file, label in files if is_wanted(file, media)]
    others = _unread_suffixes((file for file, _ in files), media)
    if not found:
        got = _described(others) or "none"
        raise UserError(f"expected {_named(media)} in the sub-folders of {str(root)!r}, got {got}; add files.")
    rated = [_rated(file) for file in found] if label_column == "rating" else found
    return Documents(rated, others, tuple(_unread(root, classes, files, media)))


def _unread(
    root: Path, classes: Sequence[os.DirEntry[str]], files: Sequence[tuple[Listed, str]], media: type[Media] | None
) -> Iterator[str]:
    """Sentences about classes of a folder that have no documents, and about files beside its classes."""
    wanted = Counter(label for file, label in files if is_wanted(file, media))
    there = Counter(label for _, label in files)
    for label in (printable(folder.name) for folder in classes):
        if not wanted[label]:
            what = f"none of its {there[label]:,} files is read" if there[label] else "it is empty"
            yield f"the folder {label!r} is no class, as {what}"
    if loose := sum(not is_folder(entry) for entry in visible(root)):
        yield f"left out {loose:,} {'file' if loose == 1 else 'files'} of {root.name!r} that are in no class folder"


def _rated(file: DocumentFile) -> DocumentFile:
    match = _RATING.fullmatch(Path(file.path).name)
    if match is None:
        raise UserError(
            f"data.label_column='rating' expects file names like 12_9.txt (ID_RATING.txt), got {file.where!r}; "
            "set data.label_column=label to use the folder's name."
        )
    return file._replace(label=match[1])


def read_files(files: Sequence[DocumentFile], schema: Schema, column: Column | None = None) -> Iterator[Row]:
    """Read documents one at a time, decompressed; their classes are the labels of the files.

    Args:
        files: The files.
        schema: Columns to read.
        column: The column of the documents; by default, the only one of texts or media.

    Raises:
        UserError: A file cannot be read or decompressed.
    """
    text, label = (column, None) if column else schema.document_columns("a folder of text files")
    likely = ""
    if schema.encoding == AUTO and not isinstance(text, Media) and len(files) > 1:
        texts = [path for path in (Path(file.path) for file in files) if suffix(path) not in NEEDS]
        likely = encoding_together([partial(open_packed, path) for path in texts])
    for file in filter(lambda file: schema.draws(file.where), files):
        whole = Path(file.path)
        if isinstance(text, Media):
            row = schema.row(document_cells(schema, text, file.path, label, file), file.where, whole.parent)
            yield row._replace(file=whole)
            continue
        try:
            found = read_document(whole, schema.encoding, likely)
        except NotText as error:
            yield Row({}, error.place(file.where), error.problem, file=whole)
            continue
        row = schema.row(document_cells(schema, text, found.text, label, file), file.where, whole.parent)
        yield row._replace(encoding=found.encoding, file=whole, extracted_from=found.extracted_from)


def document_cells(
    schema: Schema, column: Column, content: str, label: Label | None, file: DocumentFile
) -> dict[str, str]:
    """Cells of a document: its content, and the label of its file."""
    cells = {schema.names[column.name]: content}
    if label is not None:
        cells[schema.names[label.name]] = file.label
    return cells
