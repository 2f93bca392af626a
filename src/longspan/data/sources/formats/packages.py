"""A data set that every machine has: the source files of installed Python packages, labelled by package."""

import os
import sysconfig
from collections.abc import Iterator, Sequence
from hashlib import sha256
from pathlib import Path

from longspan.data.sources.files.opening import open_packed
from longspan.data.sources.formats.folders import DocumentFile, document_cells
from longspan.data.sources.formats.schema import Row, Schema
from longspan.errors import UserError

DEFAULT_CLASSES = 10
SMALLEST = 200
"""Minimum number of characters in a file: shorter ones contain little but licence headers and imports."""


def site_folders() -> list[Path]:
    """Return the folders of this interpreter's installed packages."""
    paths = sysconfig.get_paths()
    return [Path(path) for path in dict.fromkeys((paths["purelib"], paths["platlib"])) if Path(path).is_dir()]


def list_packages(folders: Sequence[Path], classes: int = 0) -> list[DocumentFile]:
    """List the Python files of the packages with the most files; nothing is imported and no file is opened.

    The files of a package are in the order of a hash of their path, so that the first ones sample all its parts.

    Args:
        folders: Folders with one sub-folder per package.
        classes: Number of packages; 0 means 10.

    Raises:
        UserError: There are fewer packages.
    """
    packages: dict[str, list[DocumentFile]] = {}
    for folder in folders:
        for root, names, files in os.walk(folder):
            names[:] = [name for name in names if name.isidentifier() and name != "__pycache__"]
            for name in files:
                path = Path(root, name)
                relative = path.relative_to(folder)
                if path.suffix == ".py" and len(relative.parts) > 1:
                    facts = path.stat()
                    if facts.st_size >= SMALLEST:
                        where = relative.as_posix()
                        entry = DocumentFile(str(path), relative.parts[0], where, facts.st_size, facts.st_mtime_ns)
                        packages.setdefault(relative.parts[0], []).append(entry)
    wanted = classes or DEFAULT_CLASSES
    if len(packages) < max(2, wanted):
        raise UserError(
            f"expected {wanted} installed Python packages, got {len(packages)}; lower data.classes, or set data.path "
            "to "
            "data of your own."
        )
    largest = sorted(packages, key=lambda name: (-len(packages[name]), name))[:wanted]
    shuffled = {name: sorted(packages[name], key=lambda file: sha256(file.where.encode()).digest()) for name in largest}
    return [file for files in shuffled.values() for file in files]


def read_packages(files: Sequence[DocumentFile], schema: Schema, files_per_class: int = 0) -> Iterator[Row]:
    """Read the files in the order given, except those under 200 characters, not in UTF-8, or already read.

    Leaving out exact copies keeps a document from being in two splits.

    Args:
        files: Result of `list_packages`.
        schema: Columns to read: text and optionally a label, the name of the package.
        files_per_class: Maximum number of documents per package; 0 means all.
    """
    text_column, label_column = schema.document_columns("'packages'")
    seen: set[bytes] = set()
    counts: dict[str, int] = {}
    for file in files:
        if files_per_class and counts.get(file.label, 0) >= files_per_class:
            continue
        with open_packed(Path(file.path)) as stream:
            content = stream.read()
        digest = sha256(content).digest()
        try:
            text = content.decode("utf-8-sig")
        except UnicodeDecodeError:
            continue
        if digest in seen or len(text.strip()) < SMALLEST:
            continue
        seen.add(digest)
        counts[file.label] = counts.get(file.label, 0) + 1
        cells = document_cells(schema, text_column, text, label_column, file)
        yield schema.row(cells, file.where, Path(file.path).parent)
