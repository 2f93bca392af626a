"""The columns that a task declares, and how the raw cells of a table become their values.

A column has a `name`, which tasks use, and a `setting`, the recipe's key under `[data]` for its name in the source.
Cells come as their source has them: text from csv; values and lists from JSON, parquet and the Hub.
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from longspan.data.columns.literals import NO_LIST, list_in, looks_literal
from longspan.data.columns.values import (
    BadCell,
    WrongColumn,
    composed,
    described,
    flag,
    label_text,
    labels,
    number,
    words,
)

RESERVED = ("where", "problem")
"""Names that no column may have: every row has its place and its problem under them."""


@dataclass(frozen=True)
class Column(ABC):
    """A column that a task reads.

    Attributes:
        name: Its name in the prepared data set and in `Row.values`.
        setting: The attribute of the settings, a key under `[data]`, with its name in the source.
        required: Whether a row without a value is a bad row. If not, its value becomes None.
        target: Whether it contains what a model predicts. Prediction reads only the other columns.
    """

    name: str
    setting: str
    required: bool = field(default=True, kw_only=True)
    target: bool = field(default=False, kw_only=True)
    #: Type of its values as Arrow calls it, in a list for lists, and by key for dictionaries.
    dtype: ClassVar[Any]
    #: Whether other columns may be read from its sources too.
    shares: ClassVar[bool] = False
    #: Whether any one of its sources will do, the first of which is its own.
    alternative: ClassVar[bool] = False
    #: Whether rows of one file, which is another column's, are one row: see `merged`.
    merges: ClassVar[bool] = False

    @property
    @abstractmethod
    def kind(self) -> str:
        """Expected content of a cell, in words, such as "a number"."""

    def size(self, value: Any) -> int:
        """Return the approximate size of a value in characters, words or bytes, which limits what is read at once."""
        return len(value) if isinstance(value, str | list) else 1

    @property
    def identifies(self) -> bool:
        """Whether rows with the same values of all such columns hold the same document: by default, unless a target.

        Such rows stay in one split where `load` draws splits, and are counted where it is given several.
        """
        return not self.target

    def content(self, value: Any) -> Any:
        """Content that copies of a value share: by default the value, whose case and white space are ignored.

        Bytes are compared as they are.
        """
        return value

    @property
    def feature(self) -> Any:
        """Its type in a `datasets.Dataset`, from `dtype`."""
        return _feature(self.dtype)

    @abstractmethod
    def parse(self, cell: Any, folder: Path) -> Any:
        """Return the value of a cell, which is not None; None if the cell turns out to be empty.

        Args:
            cell: Text (from csv, for example), a number, or a list; it has been decoded.
            folder: The folder that relative paths start from.

        Raises:
            BadCell: The row is bad.
            WrongColumn: Its type shows that the setting names the wrong column.
        """

    def sources(self, name: str) -> Sequence[str]:
        """Return the columns of the source that it is read from; `name` is what its setting says."""
        return (name,)

    def absent(self, name: str, present: Collection[str]) -> list[str]:
        """Sources that a table must have, but which are not among the columns `present`."""
        needed = self.sources(name)[: 1 if self.alternative else None]
        return [source for source in needed if self.required and source not in present]

    def given(self, cell: Any) -> Any:
        """Cell of a table for a value in memory, such as an image: by default the same."""
        return cell

    def cells(self, values: Any) -> list[Any]:
        """Cells of a column of arrow: by default Python's objects, which forget the types of numbers."""
        found: list[Any] = values.to_pylist()
        return found

    def cell(self, cells: Sequence[Any]) -> Any:
        """Input of `parse`, from the cells of its `sources`."""
        return cells[0]

    def is_missing(self, value: Any) -> bool:
        """Return whether a value counts as missing."""
        return value is None

    def merged(self, values: Sequence[Any]) -> Any:
        """Return the value of rows that are one, where the column `merges`.

        Raises:
            BadCell: They do not fit together.
        """
        raise NotImplementedError(f"{type(self).__name__} does not merge rows.")

    def check(self, values: Mapping[str, Any]) -> str:
        """Return why the value does not fit the row's other columns; empty if it does."""
        return ""

    @property
    def facts(self) -> list[Any]:
        """Everything the values depend on besides the cells, as JSON."""
        kind = type(self)
        return [f"{kind.__module__}.{kind.__qualname__}", asdict(self)]

    def _bad_cell(self, details: str) -> BadCell:
        return BadCell(f"no {self.name}", f"expected {self.kind}, got {details}")


@dataclass(frozen=True)
class TextFile:
    """A file in memory in place of its text, by its path or its content; cells from elsewhere cannot be one."""

    path: Path | None = None
    content: bytes = b""


@dataclass(frozen=True)
class Text(Column):
    """A document, or one of a pair: a string. Empty text and mere white space count as missing.

    Attributes:
        lines: Whether `load` takes the rows of a table for the lines of one document; only for a column by itself.
        together: Whether rows with the same text stay together where `load` splits them.
        each_line: Whether each line of a text file is one; with other such columns, files with a line for each.
    """

    lines: bool = field(default=False, kw_only=True)
    each_line: bool = field(default=False, kw_only=True)
    together: bool = field(default=False, kw_only=True)
    kind = "text"
    dtype = "large_string"

    def given(self, cell: Any) -> Any:
        # Strings are texts, never paths.
        if isinstance(cell, os.PathLike):
            return TextFile(path=Path(cell).absolute())
        return TextFile(content=cell) if isinstance(cell, bytes) else cell

    def parse(self, cell: Any, folder: Path) -> str:
        if not isinstance(cell, str):
            raise WrongColumn
        return cell

    def is_missing(self, value: Any) -> bool:
        return not value or value.isspace()


@dataclass(frozen=True)
class Label(Column):
    """One class, as text: see `label_text`.

    Attributes:
        lists: Remedy for a column of lists, for the message.
    """

    target: bool = field(default=True, kw_only=True)
    lists: str = field(default="", kw_only=True)
    kind = "one label"
    dtype = "string"

    def parse(self, cell: Any, folder: Path) -> str | None:
        if isinstance(cell, list):
            raise WrongColumn(self.lists)
        label = label_text(cell)
        return None if label is None else composed(label)


@dataclass(frozen=True)
class Labels(Column):
    """Any number of classes of one document: a list, or text that is a list or labels with separators.

    An empty list or text means that no class applies; no value at all, as null in JSON, counts as missing.

    Attributes:
        separator: Separator of labels in text that is not a list; if empty, such text is one label.
    """

    target: bool = field(default=True, kw_only=True)
    separator: str = field(default=",", kw_only=True)
    kind = "a list of labels"
    dtype: ClassVar[Any] = ["string"]

    def parse(self, cell: Any, folder: Path) -> list[str]:
        if isinstance(cell, str):
            items = list_in(cell)
            if items is None:
                bare = cell.strip()
                if looks_literal(cell) or (bare[:1] == "[" and bare[-1:] == "]" and self.separator in bare[1:-1]):
                    raise self._bad_cell(f"{described(cell)}, {NO_LIST}")
                items = cell.split(self.separator) if self.separator else [cell]
                return list(dict.fromkeys(filter(None, map(str.strip, items))))
        elif isinstance(cell, list):
            items = cell
        else:
            raise WrongColumn
        return list(dict.fromkeys(labels(items, self._bad_cell)))


@dataclass(frozen=True)
class Flags(Column):
    """Any number of classes of one document, from a column for each class: the list of those that apply.

    A cell contains 0 or 1, true or false; an empty one means that the class does not apply.

    Attributes:
        labels: The classes, as their columns are called: the value of the setting, which is a list.
    """

    target: bool = field(default=True, kw_only=True)
    labels: tuple[str, ...] = field(default=(), kw_only=True)
    kind = "0 or 1, or true or false"
    dtype: ClassVar[Any] = ["string"]

    def sources(self, name: str) -> Sequence[str]:
        return self.labels

    def cell(self, cells: Sequence[Any]) -> Any:
        return list(cells)

    def parse(self, cell: Any, folder: Path) -> list[str]:
        found = []
        for label, value in zip(self.labels, cell, strict=True):
            applies = flag(value)
            if applies is None:
                raise self._bad_cell(f"{described(value)} in column {label!r}")
            if applies:
                found.append(label)
        return found


@dataclass(frozen=True)
class Number(Column):
    """A finite number, float64: a number, or text that is one."""

    kind = "a number such as 3.5"
    dtype = "float64"

    def parse(self, cell: Any, folder: Path) -> float | None:
        return None if isinstance(cell, str) and not cell.strip() else number(cell, self._bad_cell)


@dataclass(frozen=True)
class Numbers(Column):
    """A list of finite numbers, float64; or text that is a list, or numbers separated by white space."""

    kind = "a list of numbers"
    dtype: ClassVar[Any] = ["float64"]

    def parse(self, cell: Any, folder: Path) -> list[float]:
        if isinstance(cell, str):
            items = list_in(cell)
            cell = cell.split() if items is None else items
        if not isinstance(cell, list):
            raise WrongColumn
        return [number(item, self._bad_cell) for item in cell]

    def is_missing(self, value: Any) -> bool:
        return not value


@dataclass(frozen=True)
class Words(Column):
    """A document as words: a list of strings; or text that is a list, or words separated by white space.

    Attributes:
        documents: Whether the sentences of a document are one row, where files of columns mark documents.
        strip: Text to remove from each word, a regular expression; empty for nothing.
        raw: Whether text that is not a list is left as it is, for a task that splits it itself.
    """

    documents: bool = field(default=True, kw_only=True)
    strip: str = field(default="", kw_only=True)
    raw: bool = field(default=False, kw_only=True)
    kind = "a list of words"
    dtype: ClassVar[Any] = ["string"]

    def parse(self, cell: Any, folder: Path) -> list[str] | str:
        if self.raw and isinstance(cell, str) and list_in(cell) is None:
            return cell
        items = self._items(cell)
        if not self.strip:
            return items
        stripped = [re.sub(self.strip, "", item) for item in items]
        if not all(stripped):
            raise self._bad_cell(f"a word of which data.strip={self.strip!r} leaves nothing")
        return stripped

    def _items(self, cell: Any) -> list[str]:
        items = words(cell, self._bad_cell)
        wrong = [item for item in items if not isinstance(item, str)]
        if wrong and isinstance(cell, str) and not looks_literal(cell):
            # "[1]" is a word too.
            return cell.split()
        if wrong:
            raise self._bad_cell(f"{described(wrong[0])} among them")
        if not all(item and not item.isspace() for item in items):
            raise self._bad_cell("an empty word among them")
        return items

    def is_missing(self, value: Any) -> bool:
        return not value or (isinstance(value, str) and value.isspace())


@dataclass(frozen=True)
class WordLabels(Column):
    """A class for each word: a list of labels, or text as for `Words`.

    Attributes:
        of: The name of the `Words` column that they label, one label per word.
        unseen: Whether other splits may have labels that the training split lacks.
    """

    target: bool = field(default=True, kw_only=True)
    of: str = field(default="tokens", kw_only=True)
    unseen: bool = field(default=False, kw_only=True)
    kind = "a list of labels"
    dtype: ClassVar[Any] = ["string"]
    identifies = False

    def parse(self, cell: Any, folder: Path) -> list[str]:
        return labels(words(cell, self._bad_cell), self._bad_cell)

    def is_missing(self, value: Any) -> bool:
        return not value

    def check(self, values: Mapping[str, Any]) -> str:
        labels, words = values[self.name], values[self.of]
        if not labels or not words or len(labels) == len(words):
            return ""
        return f"{self.name} and {self.of} differ in number (expected {len(words)}, got {len(labels)})"


def _feature(dtype: Any) -> Any:
    # Imported late, as `datasets` takes a second to import and declaring columns should cost nothing.
    from datasets import List, Value

    if isinstance(dtype, dict):
        return {name: _feature(one) for name, one in dtype.items()}
    return List(_feature(dtype[0])) if isinstance(dtype, list) else Value(dtype)
