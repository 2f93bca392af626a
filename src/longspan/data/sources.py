"""Labelled documents from wherever they are, checked and in splits: `load_splits`; and what documents without share.

Every source is a stream of rows that is written once to an Arrow file in the cache of `datasets` and read from there.
The file's name is a fingerprint of what the rows depend on (paths, sizes, times, columns), so a second run looks at
the files' dates only, and a changed file is read again.
"""

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
from datasets import ClassLabel, Dataset, DatasetDict, Features, NamedSplit, Value, load_dataset
from datasets.exceptions import DatasetGenerationError, DatasetsError

from longspan.data.config import DataConfig
from longspan.data.files import (
    MALFORMED,
    ClassFile,
    Row,
    check_columns,
    label_text,
    list_classes,
    missing,
    read_classes,
    read_rows,
)
from longspan.data.packages import list_packages, read_packages, site_folders
from longspan.errors import UserError

__all__ = ["Row", "Splits", "load_splits", "read_rows"]

SPLITS = ("train", "validation", "test")
SPLIT_NAMES = {"train": "train", "validation": "validation", "valid": "validation", "dev": "validation", "test": "test"}
_ROWS_VERSION = 2
"""Raise this when the same files would give other rows, so that what is in users' caches is not used."""

_FEATURES = {"text": "large_string", "label": "string", "where": "string", "problem": "string"}
_NO_LABEL, _EMPTY = "no label", "no text"


@dataclass(frozen=True)
class Splits:
    """Documents.

    Attributes:
        splits: "train", "validation" and "test" as far as there are any, each with the text columns text, where and, if
            documents are labelled, label.
        skipped: How many rows were left out, by reason.
    """

    splits: DatasetDict
    skipped: dict[str, int]


@dataclass(frozen=True)
class Source:
    """The rows of one split.

    Attributes:
        name: Their name for messages.
        facts: All that they depend on, as JSON.
        rows: How to read them.
        labelled: Whether every row must have a label.
    """

    name: str
    facts: Any
    rows: Callable[[], Iterator[Row]]
    labelled: bool = True


def load_splits(config: DataConfig, *, training: bool = True) -> Splits:
    """Read documents and labels and split them.

    A validation or test split that the source lacks is taken from the training rows, class by class, by `split_seed`.

    Args:
        config: Where the data are and how to split them.
        training: Whether to insist on two classes, as a classifier needs to learn anything.

    Raises:
        UserError: Whatever is wrong with the data: see `longspan.data.files.read_rows`; rows without label, empty
            documents, broken UTF-8 or malformed rows unless `skip_bad_rows` is set; fewer than two classes; a label
            of validation or test that training lacks; too few examples of a class to split.
    """
    if config.join_rows:
        raise UserError("data.join_rows makes one document of all rows, but here each row has its label: leave it out.")
    splits, skipped = read_sources(_sources(config), config)
    _check_labels(splits, training)
    if fractions := missing_fractions(splits, config):
        splits |= _split_off(splits["train"], fractions, config.split_seed)
    return Splits(DatasetDict({split: splits[split] for split in SPLITS if split in splits}), skipped)


def read_sources(sources: dict[str, Source], config: DataConfig) -> tuple[dict[str, Dataset], dict[str, int]]:
    """Read each split, without its bad rows; return the splits, and how many rows were left out, by reason.

    Raises:
        UserError: Rows are bad and `config.skip_bad_rows` is not set, or no row of training is good.
    """
    skipped: dict[str, int] = {}
    splits: dict[str, Dataset] = {}
    for split, source in sorted(sources.items(), key=lambda item: SPLITS.index(item[0])):
        rows = _without_bad_rows(cached(source, split), source, config.skip_bad_rows, skipped)
        if len(rows):
            splits[split] = rows
        elif split == "train":
            raise UserError(f"expected documents in {source.name}, but every row is bad: mend them or use other data.")
    return splits, skipped


def missing_fractions(splits: dict[str, Dataset], config: DataConfig) -> dict[str, float]:
    """Return which splits are to be taken from the training data, and how much of it."""
    wanted = {"validation": config.validation_fraction, "test": config.test_fraction}
    return {split: fraction for split, fraction in wanted.items() if fraction and split not in splits}


def _sources(config: DataConfig) -> dict[str, Source]:
    sources = _find(config) if config.path else {}
    for split in SPLITS:
        path = getattr(config, split)
        if path:
            sources[split] = _single(Path(path).expanduser(), f"data.{split}", config)
    if "train" not in sources:
        raise UserError(
            "there is nothing to train on: set data.path to a file, a folder, 'packages' or 'hub:NAME', or set "
            "data.train."
        )
    return sources


def _find(config: DataConfig) -> dict[str, Source]:
    if config.path == "packages":
        return {"train": _packages(config)}
    if config.path.startswith("hub:"):
        columns = {"data.text_column": config.text_column, "data.label_column": config.label_column}
        sources = hub(config.path.removeprefix("hub:"), columns)
        if "train" not in sources:
            found = ", ".join(sources)
            raise UserError(f"the data set {config.path!r} has no split 'train' but {found}: use another one.")
        return sources
    path = Path(config.path).expanduser()
    names = [entry.name for entry in path.iterdir() if entry.is_dir()] if path.is_dir() else []
    if "train" in names:
        return {
            split: _classes(path / name, config, f"{name}/") for name, split in SPLIT_NAMES.items() if name in names
        }
    return {"train": _single(path, "data.path", config)}


def _single(path: Path, setting: str, config: DataConfig) -> Source:
    if not path.exists():
        raise UserError(f"{setting}: {missing(path)}")
    if path.is_dir():
        if (path / "train").is_dir():
            raise UserError(
                f"{setting} must be a file or a folder with one sub-folder per class, but {str(path)!r} holds train/: "
                "give it as data.path."
            )
        return _classes(path, config)
    columns = {"text_column": config.text_column, "label_column": config.label_column}
    stat = path.stat()
    facts = [str(path.resolve()), stat.st_size, stat.st_mtime_ns, columns]
    return Source(path.name, facts, lambda: read_rows(path, **columns))


def _classes(root: Path, config: DataConfig, prefix: str = "") -> Source:
    if config.text_column != "text":
        raise UserError(
            f"a folder of classes has no column {config.text_column!r} (data.text_column) but 'text', the files' "
            "content: leave data.text_column out."
        )
    files = list_classes(root, config.label_column, prefix)
    return Source(str(root), [str(root.resolve()), _file_facts(files)], lambda: read_classes(files))


def _packages(config: DataConfig) -> Source:
    files = list_packages(site_folders(), config.classes)
    facts = [_file_facts(files), config.files_per_class]
    return Source("the installed packages", facts, lambda: read_packages(files, config.files_per_class))


def _file_facts(files: list[ClassFile]) -> list[Any]:
    return [list(file) for file in files]


def hub(address: str, columns: dict[str, str]) -> dict[str, Source]:
    """Return the splits of a data set, from the Hub or in a local folder.

    Args:
        address: NAME or OWNER/NAME, the latter perhaps followed by /CONFIG, or ./FOLDER.
        columns: Names of the columns with the text and, if rows are labelled, the label, by the setting that says so.

    Raises:
        UserError: The data set cannot be loaded or lacks a column.
    """
    local = address.startswith((".", "/", "~"))
    parts = [str(Path(address).expanduser())] if local else address.split("/", 2)
    name, settings = (parts[0], None) if local else ("/".join(parts[:2]), parts[2] if len(parts) > 2 else None)
    if local and not Path(name).exists():
        raise UserError(f"data.path: {missing(Path(name))}")
    try:
        loaded = load_dataset(name, settings)
    except (DatasetsError, OSError, ValueError) as error:
        problem = str(error).strip().splitlines()[0].rstrip(".")
        raise UserError(
            f"the data set {address!r} could not be loaded ({problem}): check its name, OWNER/NAME or "
            "OWNER/NAME/CONFIG, and the connection."
        ) from None
    sources = {
        split: _hub_split(loaded[found], f"{address}, {found}", columns)
        for found, split in SPLIT_NAMES.items()
        if found in loaded
    }
    if not sources:
        raise UserError(f"the data set {address!r} has no split 'train' but {', '.join(loaded)}: use another one.")
    return sources


def _hub_split(dataset: Dataset, name: str, columns: dict[str, str]) -> Source:
    check_columns(name, columns, dataset.column_names)
    used = list(columns.values())
    kind = dataset.features[used[-1]]

    def rows() -> Iterator[Row]:
        for number, row in enumerate(dataset.select_columns(used), 1):
            where = f"{name}, row {number}"
            text, *labels = (row[column] for column in used)
            if text is not None and not isinstance(text, str):
                raise UserError(
                    f"{where}: expected text in column {used[0]!r}, but got a value of type {type(text).__name__}: "
                    "set data.text_column to the column with the documents."
                )
            label = labels[0] if labels else None
            if isinstance(kind, ClassLabel):
                # The Hub's convention for test sets whose labels are secret is -1.
                label = None if label is None or label < 0 else kind.int2str(label)
            yield Row(text, label_text(label, where), where)

    return Source(name, [dataset._fingerprint, used], rows, labelled=len(used) > 1)


def cached(source: Source, split: str) -> Dataset:
    """Write the rows to the cache unless they are there, bad ones included so that they need not be found again."""
    # A file is found again only as the same split.
    facts = [_ROWS_VERSION, split, source.labelled, source.facts]
    fingerprint = hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]
    features = {name: kind for name, kind in _FEATURES.items() if source.labelled or name != "label"}

    def examples() -> Iterator[dict[str, str]]:
        for row in source.rows():
            problem = row.problem or (_NO_LABEL if source.labelled and row.label is None else "")
            if not problem and (not row.text or row.text.isspace()):
                problem = _EMPTY
            columns = {"text": row.text or "", "label": row.label or "", "where": row.where, "problem": problem}
            yield {name: columns[name] for name in features}

    try:
        return Dataset.from_generator(
            examples,
            features=Features({name: Value(kind) for name, kind in features.items()}),
            split=NamedSplit(split),
            fingerprint=fingerprint,
            # Documents may be long: with the default of 1,000 rows, a thousand books would be in memory.
            writer_batch_size=100,
        )
    except DatasetGenerationError as error:
        cause = error.__cause__
        if isinstance(cause, UserError):
            raise cause from None
        if isinstance(cause, OSError) and cause.filename:
            raise UserError(
                f"expected to read {source.name}, but {cause.filename!r} fails: {cause.strerror}."
            ) from None
        raise


def _without_bad_rows(dataset: Dataset, source: Source, skip: bool, skipped: dict[str, int]) -> Dataset:
    problems = dataset.data.column("problem")
    counts = {entry["values"]: entry["counts"] for entry in pc.value_counts(problems).to_pylist() if entry["values"]}
    if not counts:
        return dataset.remove_columns("problem")
    if not skip:
        for problem in problems.unique().to_pylist():
            if how := MALFORMED.get(_reason(problem)):
                first = dataset[pc.index(problems, problem).as_py()]["where"]
                raise UserError(
                    f"{first}: {problem}: {how}, or set data.skip_bad_rows=true to drop and count such rows."
                )
        found = []
        for reason, count in sorted(counts.items()):
            first = dataset[pc.index(problems, reason).as_py()]["where"]
            found.append(f"{reason} in {count} {'rows' if count > 1 else 'row'} (first: {first})")
        wanted = "a label and a document" if source.labelled else "a document"
        raise UserError(
            f"expected {wanted} in UTF-8 in every row, but {source.name} has {' and '.join(found)}: mend them, "
            "or set data.skip_bad_rows=true to drop and count them."
        )
    for problem, count in counts.items():
        skipped[_reason(problem)] = skipped.get(_reason(problem), 0) + count
    good = np.flatnonzero(pc.equal(problems, "").to_numpy())
    return dataset.select(good).remove_columns("problem")


def _reason(problem: str) -> str:
    """A problem without its details, which follow in brackets."""
    return problem.partition(" (")[0]


def _check_labels(splits: dict[str, Dataset], training: bool) -> None:
    known = set(splits["train"].unique("label"))
    if training and len(known) < 2:
        raise UserError(
            f"expected at least two classes, but every training label is {min(known)!r}: add examples of another "
            "class, or check data.label_column."
        )
    for split, dataset in splits.items():
        unseen = sorted(set(dataset.unique("label")) - known)
        if unseen:
            first = dataset[dataset["label"][:].index(unseen[0])]["where"]
            raise UserError(
                f"the {split} data hold the label {unseen[0]!r} (first: {first}), which no training example has: add "
                f"training examples of it or take it out of the {split} data."
            )


def _split_off(dataset: Dataset, fractions: dict[str, float], seed: int) -> dict[str, Dataset]:
    """Take each fraction of every class, rounded but at least one example, and leave the rest as "train"."""
    rows: dict[str, list[int]] = {}
    for number, label in enumerate(dataset["label"][:]):
        rows.setdefault(label, []).append(number)
    random = np.random.default_rng(seed)
    parts: dict[str, list[int]] = {split: [] for split in (*fractions, "train")}
    for label in sorted(rows):
        count = len(rows[label])
        if count <= len(fractions):
            wanted = ", ".join(("train", *fractions))
            raise UserError(
                f"class {label!r} has {count} training example{'s' if count > 1 else ''} (first: "
                f"{dataset[rows[label][0]]['where']}), but the splits {wanted} need one each: add examples, remove "
                f"the class, or give {' and '.join(f'data.{split}' for split in fractions)}."
            )
        for split, numbers in deal(rows[label], fractions, random).items():
            parts[split] += numbers
    return {split: dataset.select(sorted(numbers)) for split, numbers in parts.items()}


def deal(rows: list[int], fractions: dict[str, float], random: np.random.Generator) -> dict[str, list[int]]:
    """Deal rows out to splits at random: each fraction, rounded but at least one row, and the rest to "train"."""
    order, start = random.permutation(rows), 0
    parts = {}
    for done, (split, fraction) in enumerate(fractions.items()):
        # One row stays for training and for each split still to come.
        most = len(rows) - start - (len(fractions) - done)
        taken = min(max(1, round(fraction * len(rows))), most)
        parts[split] = order[start : start + taken].tolist()
        start += taken
    return {**parts, "train": order[start:].tolist()}
