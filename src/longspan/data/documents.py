"""Documents without labels, whole and in splits: `load_documents`.

A text file is one document, whatever its suffix, unless that is one of a table's; .gz and .xz are unpacked. A folder's
documents are its text files (`TEXT`), also in folders within. Folders train/, valid/ (validation/, dev/) and test/ are
splits; so are files with these words in their names, such as wiki.train.tokens, where the folder has one of each and,
but for a README, no other text. In tables and data sets of the Hub each row is a document, or the line of one
(`join_rows`).
"""

import math
import re
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
from datasets import Dataset, DatasetDict

from longspan.data.config import DataConfig
from longspan.data.files import BROKEN, FORMATS, ClassFile, Row, list_files, missing, open_packed, read_rows, suffix
from longspan.data.packages import list_packages, read_packages, site_folders
from longspan.data.sources import (
    SPLIT_NAMES,
    SPLITS,
    Source,
    Splits,
    cached,
    deal,
    hub,
    missing_fractions,
    read_sources,
)
from longspan.errors import UserError

# fmt: off
TEXT = frozenset((
    ".txt", ".text", ".md", ".markdown", ".rst", ".tex", ".org", ".adoc", ".tokens", ".raw", ".html", ".htm", ".xml",
    ".json", ".yaml", ".yml", ".toml", ".py", ".c", ".h", ".cc", ".cpp", ".hpp", ".cu", ".java", ".kt", ".js", ".ts",
    ".go", ".rs", ".rb", ".php", ".pl", ".r", ".jl", ".scala", ".swift", ".lua", ".sql", ".sh",
))
# fmt: on
"""Suffixes of text files, by which a folder's documents are told from what else it holds."""


def load_documents(config: DataConfig, *, training: bool = True) -> Splits:
    """Read documents and split them.

    A validation or test split that the source lacks is taken from the training documents: whole ones at random by
    `split_seed`, or, where there is only one, its end (the test last, the validation before it).

    Args:
        config: Where the documents are and how to split them.
        training: Whether to insist on a training split.

    Raises:
        UserError: Whatever is wrong with the data: nothing there, no text, broken UTF-8 or malformed rows, a missing
            column, too few documents to split.
    """
    splits, skipped = read_sources(_sources(config, training), config)
    fractions = missing_fractions(splits, config)
    if fractions and "train" in splits:
        splits |= _split_off(splits["train"], fractions, config.split_seed)
    return Splits(DatasetDict({split: splits[split] for split in SPLITS if split in splits}), skipped)


def _sources(config: DataConfig, training: bool) -> dict[str, Source]:
    sources = _find(config) if config.path else {}
    for split in SPLITS:
        path = getattr(config, split)
        if path:
            sources[split] = _single(Path(path).expanduser(), f"data.{split}", config)
    if "train" not in sources and (training or not sources):
        found = f"{config.path!r} holds {' and '.join(sources)} only" if sources else "no data are named"
        raise UserError(
            f"there is nothing to train on, as {found}: set data.path to a text file, a folder, a table, 'packages' or "
            "'hub:NAME', or set data.train."
        )
    return sources


def _find(config: DataConfig) -> dict[str, Source]:
    if config.path == "packages":
        files = list_packages(site_folders(), config.classes)
        facts = [*_facts(files), config.files_per_class]
        rows = partial(read_packages, files, config.files_per_class)
        return {"train": Source("the installed packages", facts, rows, labelled=False)}
    if config.path.startswith("hub:"):
        found = hub(config.path.removeprefix("hub:"), {"data.text_column": config.text_column})
        return {split: _joined(source) if config.join_rows else source for split, source in found.items()}
    path = Path(config.path).expanduser()
    if not path.is_dir():
        return {"train": _single(path, "data.path", config)}
    files = list_files(path)
    return {split: _folder(path, found) for split, found in (_splits(files) or {"train": files}).items()}


def _splits(files: Sequence[ClassFile]) -> dict[str, list[ClassFile]]:
    """Return the files of each split that the names of folders, or else of files, tell; nothing if they do not."""
    splits: dict[str, list[ClassFile]] = {}
    if any(file.where.startswith("train/") for file in files):
        for file in files:
            folder, inside, _ = file.where.partition("/")
            if inside and folder in SPLIT_NAMES:
                splits.setdefault(SPLIT_NAMES[folder], []).append(file)
        return splits
    for file in _texts(files):
        folder, inside, name = file.where.rpartition("/")
        if name.lower().startswith("readme"):
            continue
        words = {folder.partition("/")[0]} if inside else set(re.split(r"[._-]", name))
        named = {SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES}
        # A folder of tests, test_a.py and test_b.py, is no split.
        if len(named) != 1 or (not inside and named <= splits.keys()):
            return {}
        splits.setdefault(named.pop(), []).append(file)
    return splits if len(splits) > 1 else {}


def _single(path: Path, setting: str, config: DataConfig) -> Source:
    if not path.exists():
        raise UserError(f"{setting}: {missing(path)}")
    if path.is_dir():
        if (path / "train").is_dir():
            raise UserError(
                f"{setting} must be a file or a folder of text files, but {str(path)!r} holds train/: give it as "
                "data.path."
            )
        return _folder(path, list_files(path))
    stat = path.stat()
    if suffix(path) in FORMATS:
        facts = [str(path.resolve()), stat.st_size, stat.st_mtime_ns, config.text_column]
        rows = partial(read_rows, path, text_column=config.text_column, label_column=None)
        source = Source(path.name, facts, rows, labelled=False)
        return _joined(source) if config.join_rows else source
    file = ClassFile(str(path.resolve()), "", path.name, stat.st_size, stat.st_mtime_ns)
    return Source(path.name, _facts([file]), partial(_read_one, file), labelled=False)


def _folder(path: Path, files: Sequence[ClassFile]) -> Source:
    texts = _texts(files)
    if not texts:
        other = f"none among its {len(files)} files (such as {files[0].where})" if files else "it is empty"
        raise UserError(
            f"expected text files (.txt, .md, .py and the like) in the folder {str(path)!r}, but {other}: give another "
            "folder, or a file by its own name."
        )
    return Source(str(path), _facts(texts), partial(_read, texts), labelled=False)


def _texts(files: Sequence[ClassFile]) -> list[ClassFile]:
    return [file for file in files if suffix(Path(file.path)) in TEXT]


def _facts(files: Sequence[ClassFile]) -> list[list[str | int]]:
    return [list(file) for file in files]


def _read(files: Sequence[ClassFile]) -> Iterator[Row]:
    for file in files:
        with open_packed(Path(file.path)) as stream:
            content = stream.read()
        try:
            yield Row(content.decode("utf-8-sig"), None, file.where)
        except UnicodeDecodeError as error:
            yield Row(None, None, f"{file.where}, byte {error.start}", BROKEN)


def _read_one(file: ClassFile) -> Iterator[Row]:
    """Read a file that was named itself: where it is faulty there is nothing to leave out."""
    for row in _read([file]):
        if row.problem:
            raise UserError(
                f"expected text in UTF-8, but {row.where}, is in another encoding or no text: save it as UTF-8."
            )
        if not row.text or row.text.isspace():
            raise UserError(f"expected text in {file.where!r}, but it is empty: give a file with text.")
        yield row


def _joined(source: Source) -> Source:
    """Make the rows the lines of one document."""

    def rows() -> Iterator[Row]:
        lines = []
        for row in source.rows():
            if row.text is None:
                yield row
            else:
                lines.append(row.text if row.text.endswith("\n") else f"{row.text}\n")
        yield Row("".join(lines), None, source.name)

    return Source(source.name, [source.facts, "joined"], rows, labelled=False)


def _split_off(dataset: Dataset, fractions: dict[str, float], seed: int) -> dict[str, Dataset]:
    """Take each fraction of the documents or, of a single one, its end, and leave the rest as "train"."""
    if len(dataset) == 1:
        return _cut(dataset, fractions)
    if len(dataset) <= len(fractions):
        raise UserError(
            f"{len(dataset)} documents cannot be shared among the splits {', '.join(('train', *fractions))}: add "
            f"documents, join them in one, or give {' and '.join(f'data.{split}' for split in fractions)}."
        )
    parts = deal(list(range(len(dataset))), fractions, np.random.default_rng(seed))
    return {split: dataset.select(sorted(numbers)) for split, numbers in parts.items()}


def _cut(dataset: Dataset, fractions: dict[str, float]) -> dict[str, Dataset]:
    """Cut the only document where so many bytes follow, or after the character that this would cut in two."""
    where = dataset["where"][0]
    text = memoryview(dataset.with_format("arrow")[:]["text"][0].as_buffer())
    parts = {}
    end, share = len(text), 0.0
    for split in ("test", "validation", "train"):
        if split in fractions or split == "train":
            share = 1.0 if split == "train" else share + fractions[split]
            # So that 0.05 of a hundred million are five million, and 0.1 rounds up as it does in int(0.9 * length).
            start = len(text) - math.ceil(len(text) * share - 1e-6)
            while start < end and text[start] & 0xC0 == 0x80:
                start += 1
            parts[split] = (start, end)
            end = start
    if any(start == end for start, end in parts.values()):
        raise UserError(
            f"{where} with its {len(text)} bytes cannot be shared among the splits {', '.join(('train', *fractions))}: "
            f"use more text, or give {' and '.join(f'data.{split}' for split in fractions)}."
        )
    return {split: _part(dataset, where, split, *part) for split, part in parts.items()}


def _part(dataset: Dataset, where: str, split: str, start: int, end: int) -> Dataset:
    def rows() -> Iterator[Row]:
        text = memoryview(dataset.with_format("arrow")[:]["text"][0].as_buffer())
        yield Row(str(text[start:end], "utf-8"), None, f"{where}, bytes {start} to {end}")

    source = Source(where, [dataset._fingerprint, start, end], rows, labelled=False)
    return cached(source, split).remove_columns("problem")
