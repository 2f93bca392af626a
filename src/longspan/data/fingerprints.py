"""The hash of a data set by which caches find it again: `fingerprint`."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datasets import Dataset


def fingerprint(dataset: "Dataset") -> str:
    """Hash of a data set's origin: its files and every change since. Data sets with equal hashes have equal rows.

    `datasets` names its cache files by it and has no public name for it; tests/test_private_names.py checks this one.
    """
    return str(dataset._fingerprint)
