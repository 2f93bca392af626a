"""What a task reads: the columns that it declares, and how a raw cell of a table becomes a value of each.

A column has a `name`, under which tasks find it, and a `setting`, the recipe's key under `[data]` that says what the
source calls it. Cells come as their source has them: text from csv, values and lists from JSON, parquet and the Hub.
"""

import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from longspan.data.cells import BadCell, WrongColumn, json_list, label_text, labels, number, short, words
from longspan.data.opening import expand
from longspan.errors import UserError

RESERVED = ("where", "problem")
"""Names that no column may have: every row has its place and what is wrong with it."""


@dataclass(frozen=True)
class Column(ABC):
    """A column that a task reads.

    Attributes:
        name: Its name in the prepared data set and in `Row.values`.
        setting: The attribute of the settings, a key under `[data]`, that says what the source calls it.
        required: Whether a row without a value is a bad row; otherwise the value is None.
        target: Whether it holds what a model predicts. Prediction reads the others only.
    """

    name: str
    setting: str
    required: bool = field(default=True, kw_only=True)
    target: bool = field(default=False, kw_only=True)

    @property
    @abstractmethod
    def kind(self) -> str:
        """What a cell should hold, in words, such as "a number"."""

    @property
    @abstractmethod
    def feature(self) -> Any:
        """The type in a `datasets.Dataset`."""

    @abstractmethod
    def parse(self, cell: Any, folder: Path) -> Any:
        """Return the value of a cell that is not None; None where it turns out to hold nothing.

        Args:
            cell: Text (from csv, say), a number, a list; what could not be decoded does not get here.
            folder: What relative paths are relative to.

        Raises:
            BadCell: The row is bad.
            WrongColumn: The type is so far off that another column must be meant.
        """

    def is_missing(self, value: Any) -> bool:
        """Say whether a value counts as missing."""
        return value is None

    def check(self, values: Mapping[str, Any]) -> str:
        """Say why the value does not go with those of the row's other columns; empty if it does."""
        return ""

    @property
    def facts(self) -> list[Any]:
        """What the values depend on besides the cells, as JSON."""
        kind = type(self)
        return [f"{kind.__module__}.{kind.__qualname__}", asdict(self)]

    def _no(self, details: str) -> BadCell:
        return BadCell(f"no {self.name}", f"expected {self.kind}, but got {details}")


@dataclass(frozen=True)
class Text(Column):
    """A document, or one of a pair: a string. Empty text and white space alone count as missing."""

    kind = "text"

    @property
    def feature(self) -> Any:
        return _value("large_string")

    def parse(self, cell: Any, folder: Path) -> str:
        if not isinstance(cell, str):
            raise WrongColumn
        return cell

    def is_missing(self, value: Any) -> bool:
        return not value or value.isspace()


@dataclass(frozen=True)
class Label(Column):
    """One class, as text: see `label_text`."""

    target: bool = field(default=True, kw_only=True)
    kind = "one label"

    @property
    def feature(self) -> Any:
        return _value("string")

    def parse(self, cell: Any, folder: Path) -> str | None:
        return label_text(cell)


@dataclass(frozen=True)
class Labels(Column):
    """Any number of classes of one document: a list, or text that is a JSON list or has them between separators.

    An empty list says that no class fits; an empty cell counts as missing.

    Attributes:
        separator: What stands between labels in text that is not a JSON list; empty where such text is one label.
    """

    target: bool = field(default=True, kw_only=True)
    separator: str = field(default=",", kw_only=True)
    kind = "a list of labels"

    @property
    def feature(self) -> Any:
        return _list("string")

    def parse(self, cell: Any, folder: Path) -> list[str] | None:
        if isinstance(cell, str):
            items = json_list(cell)
            if items is None:
                if not cell.strip():
                    return None
                if cell.lstrip().startswith('["'):
                    raise self._no(f"{short(cell)}, which is not a JSON list")
                items = cell.split(self.separator) if self.separator else [cell]
                return list(dict.fromkeys(filter(None, map(str.strip, items))))
        elif isinstance(cell, list):
            items = cell
        else:
            raise WrongColumn
        return list(dict.fromkeys(labels(items, self._no)))


@dataclass(frozen=True)
class Number(Column):
    """A finite number, float64: a number, or text that is one."""

    kind = "a number such as 3.5"

    @property
    def feature(self) -> Any:
        return _value("float64")

    def parse(self, cell: Any, folder: Path) -> float | None:
        return None if isinstance(cell, str) and not cell.strip() else number(cell, self._no)


@dataclass(frozen=True)
class Numbers(Column):
    """A list of finite numbers, float64; also text that is a JSON list, or numbers between white space."""

    kind = "a list of numbers"

    @property
    def feature(self) -> Any:
        return _list("float64")

    def parse(self, cell: Any, folder: Path) -> list[float]:
        if isinstance(cell, str):
            items = json_list(cell)
            cell = cell.split() if items is None else items
        if not isinstance(cell, list):
            raise WrongColumn
        return [number(item, self._no) for item in cell]

    def is_missing(self, value: Any) -> bool:
        return not value


@dataclass(frozen=True)
class Words(Column):
    """A document in words: a list of strings; also text that is a JSON list, or words between white space."""

    kind = "a list of words"

    @property
    def feature(self) -> Any:
        return _list("string")

    def parse(self, cell: Any, folder: Path) -> list[str]:
        items = words(cell, self._no)
        wrong = [item for item in items if not isinstance(item, str)]
        if wrong and isinstance(cell, str) and not cell.lstrip().startswith('["'):
            # "[1]" is a word, too.
            return cell.split()
        if wrong:
            raise self._no(f"{short(wrong[0])} among them")
        return items

    def is_missing(self, value: Any) -> bool:
        return not value


@dataclass(frozen=True)
class WordLabels(Column):
    """A class for each word: a list of labels, or text as that of `Words`.

    Attributes:
        of: The name of the `Words` column whose words they are for, one for one.
    """

    target: bool = field(default=True, kw_only=True)
    of: str = field(default="tokens", kw_only=True)
    kind = "a list of labels"

    @property
    def feature(self) -> Any:
        return _list("string")

    def parse(self, cell: Any, folder: Path) -> list[str]:
        return labels(words(cell, self._no), self._no)

    def is_missing(self, value: Any) -> bool:
        return not value

    def check(self, values: Mapping[str, Any]) -> str:
        labels, words = values[self.name], values[self.of]
        if not labels or not words or len(labels) == len(words):
            return ""
        return f"not one of {self.name} for each of {self.of} (expected {len(words)}, but got {len(labels)})"


@dataclass(frozen=True)
class File(Column):
    """A file, by its path: absolute, or relative to the folder of the table. The value is the whole path."""

    kind = "the path of a file"

    @property
    def feature(self) -> Any:
        return _value("string")

    def parse(self, cell: Any, folder: Path) -> str | None:
        if not isinstance(cell, str):
            raise WrongColumn
        if not cell.strip():
            return None
        try:
            path = (folder / expand(cell.strip())).absolute()
            mode = path.stat().st_mode
        except (OSError, ValueError) as error:
            raise self._no(f"{cell!r}: {getattr(error, 'strerror', None) or error}") from None
        if not stat.S_ISREG(mode):
            raise self._no(f"{cell!r}, which is {'a folder' if stat.S_ISDIR(mode) else 'no regular file'}")
        return str(path)


def source_names(columns: Sequence[Column], config: Any) -> dict[str, str]:
    """Return what the source calls each column, by the column's name.

    Args:
        columns: The columns wanted.
        config: The settings, with an attribute for the `setting` of each column.

    Raises:
        UserError: A setting is empty, or two columns are read from one.
        ValueError: The columns themselves do not go together, which is a mistake of the task's.
    """
    names = [column.name for column in columns]
    if len(set(names)) < len(names) or set(names) & set(RESERVED):
        raise ValueError(f"columns must have different names, other than {' and '.join(RESERVED)}, but got {names}")
    found: dict[str, str] = {}
    for column in columns:
        if isinstance(column, WordLabels) and not any(
            isinstance(other, Words) and other.name == column.of for other in columns
        ):
            raise ValueError(f"column {column.name!r} is for the words of {column.of!r}, which is not a Words column")
        source = getattr(config, column.setting)
        if not source:
            raise UserError(f"data.{column.setting} must be a name, but it is empty: leave it out to use the default.")
        for other in columns:
            if found.get(other.name) == source:
                raise UserError(
                    f"data.{other.setting} and data.{column.setting} are both {source!r}: they must name two columns."
                )
        found[column.name] = source
    return found


def _value(kind: str) -> Any:
    # Declaring columns is free: `datasets` takes a second to import.
    from datasets import Value

    return Value(kind)


def _list(kind: str) -> Any:
    from datasets import List, Value

    return List(Value(kind))
