"""Hashes of data sets, by which caches find them again, and of files: `fingerprint` and `file_digest`."""

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import Dataset


def fingerprint(dataset: "Dataset") -> str:
    """Hash of a data set's origin: its files and every change since. Data sets with equal hashes have equal rows.

    `datasets` names its cache files by it and has no public name for it; tests/test_private_names.py checks this one.
    """
    return str(dataset._fingerprint)


def file_digest(path: Path) -> str:
    """SHA-256 of the content of a file, in hexadecimal digits."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
