"""Turning cells into rows: a `Schema`, which says what to read from a source, builds a `Row` from raw cells."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from longspan.data.columns.files import File
from longspan.data.columns.kinds import RESERVED, Column, Label, Text, TextFile, WordLabels, Words
from longspan.data.columns.media import Media
from longspan.data.columns.values import BadCell, WrongColumn, is_name, listed, shown
from longspan.data.sources.files.decoding import NotText, broken
from longspan.data.sources.files.opening import DocumentText, read_document, text_of
from longspan.errors import UserError, did_you_mean


class Row(NamedTuple):
    """One row.

    Attributes:
        values: The value of each column by name, None if it is missing; empty if the row could not be read.
        where: Its place, such as "reviews.csv, row 17" (not counting the header).
        problem: Why it is unusable, such as "no label" or "broken UTF-8" (details in brackets); empty if it is good.
        encoding: The encoding that `data.encoding = "auto"` found, if it is not UTF-8.
        file: The file that it is, if it is a whole one.
        extracted_from: The kind of document, such as ".pdf", that a program made and whose text is read; else empty.
    """

    values: dict[str, Any]
    where: str
    problem: str = ""
    encoding: str = ""
    file: Path | None = None
    extracted_from: str = ""


NOT_DRAWN = Row({}, "")
"""In place of a row that is not in the sample."""

DELIMITERS = {"comma": ",", "semicolon": ";", "tab": "\t", "\\t": "\t", "pipe": "|", "space": " "}
"""Words for delimiters that a shell would not leave alone."""


QUOTING = ("auto", "quotes", "none")
"""Values of `data.quoting`."""


def check_delimiter(delimiter: str) -> None:
    """Raise UserError unless `delimiter` is "auto", a word for a delimiter, or one."""
    if delimiter == "auto" or delimiter in DELIMITERS:
        return
    if len(delimiter) != 1 or delimiter in '"\r\n\0':
        words = ", ".join(word for word in DELIMITERS if word.isalpha())
        raise UserError(
            f"data.delimiter must be one character, or auto, {words}, got {delimiter!r}; "
            + (did_you_mean(delimiter, ["auto", *filter(str.isalpha, DELIMITERS)]) or "use what separates the fields.")
        )


@dataclass(frozen=True)
class Schema:
    """Columns to read from a source.

    Attributes:
        columns: The columns.
        names: The name of each column in the source, by its own name; several names are joined by commas.
        encoding: The encoding of text files, or "auto".
        delimiter: Separator of the fields of csv and tsv files; "auto" is a comma in one and a tab in the other.
        quoting: One of `QUOTING`, see `SourceData`.
        header: Whether their first row has the names of the columns; otherwise these are numbered from 1.
        sample: Share of the rows that are read.
        seed: Seed of their choice.
        file_column: The name in the source of a column of paths, whose files are the texts; empty if there is none.
    """

    columns: tuple[Column, ...]
    names: dict[str, str]
    encoding: str = "utf-8"
    delimiter: str = "auto"
    header: bool = True
    quoting: str = "auto"
    sample: float = 1.0
    seed: int = 0
    file_column: str = ""

    @property
    def facts(self) -> list[Any]:
        """Everything the rows depend on besides the source, as JSON."""
        columns = [column.facts for column in self.columns]
        return [self.names, columns, self.encoding, self.delimiter, self.header, self.quoting, self.file_column]

    @property
    def sources(self) -> list[str]:
        """The names of the columns in the source, in order, each once."""
        return list(dict.fromkeys(name for column in self.columns for name in self.sources_of(column)))

    @property
    def required_names(self) -> list[str]:
        """The names of the required columns in the source, in order."""
        return [name for column in self.columns if column.required for name in self.sources_of(column)]

    def sources_of(self, column: Column) -> Sequence[str]:
        """Return the names in the source of what a column is read from."""
        return column.sources(self.names[column.name])

    def given(self, name: str, cell: Any) -> Any:
        """Cell of a table for a value in memory, in the source's column `name`."""
        for column in self.columns:
            if self.names[column.name] == name:
                return column.given(cell)
        return cell

    def cells(self, name: str, values: Any) -> list[Any]:
        """Cells of a column of arrow, the source's column `name`."""
        column = next((column for column in self.columns if self.names[column.name] == name), None)
        found: list[Any] = values.to_pylist() if column is None else column.cells(values)
        return found

    @property
    def joined(self) -> bool:
        """Whether the rows of a table are the lines of one document."""
        return any(isinstance(column, Text) and column.lines for column in self.columns)

    @property
    def lines(self) -> list[str]:
        """The names in the source of the columns of which each line of a text file is one (`Text.each_line`)."""
        return [self.names[column.name] for column in self.columns if isinstance(column, Text) and column.each_line]

    def of(self, kind: type[Column]) -> list[Column]:
        """Return the columns of one kind."""
        return [column for column in self.columns if isinstance(column, kind)]

    def check_present(self, name: str, present: Sequence[str], hint: Callable[[], str] = str) -> None:
        """Raise UserError unless all required columns are present.

        Args:
            name: The name of the file or data set, for the message.
            present: The columns that it has.
            hint: Called for what to do about a missing column, if more than another name is known to help.
        """
        for column in self.columns:
            absent = column.absent(self.names[column.name], present)
            if absent:
                near = did_you_mean(absent[0], list(filter(is_name, present)))
                if not near and set(present) <= set(self.sources):
                    near = "add it."
                near = near or f"set data.{column.setting} to one of them."
                raise UserError(
                    f"expected a column {shown(absent[0])} in {name}, got {listed(present)}; {hint() or near}"
                )

    @property
    def merges(self) -> bool:
        """Whether rows about one thing are one row."""
        return any(column.merges for column in self.columns)

    def draws(self, where: str) -> bool:
        """Whether the row at a place is in the sample; each smaller sample is a part of a larger one."""
        if self.sample == 1:
            return True
        digest = hashlib.blake2b(f"{self.seed} {where}".encode(errors="surrogateescape"), digest_size=8).digest()
        return bool(where) and int.from_bytes(digest, "little") < self.sample * 2**64

    def row(self, cells: Mapping[str, Any], where: str, folder: Path) -> Row:
        """Build a row from raw cells; `NOT_DRAWN` for one that is not in the sample.

        Args:
            cells: Values by the source's columns; text, with lone surrogates for undecodable bytes, or UTF-8 as bytes.
            where: The row's place.
            folder: The folder that relative paths start from.

        Raises:
            UserError: The type of a cell shows that a setting names the wrong column.
        """
        # What is merged later is drawn then.
        if self.sample < 1 and not self.merges and not self.draws(where):
            return NOT_DRAWN
        try:
            decoded = [
                _decoded(column.cell([cells.get(name) for name in self.sources_of(column)])) for column in self.columns
            ]
        except UnicodeError:
            return Row({}, where, broken(self.encoding))
        values: dict[str, Any] = {}
        problem = extracted_from = ""
        for column, cell in zip(self.columns, decoded, strict=True):
            try:
                if isinstance(column, Text):
                    cell, extracted_from = self._text(column, cell, folder)
                value = None if cell is None else column.parse(cell, folder)
            except BadCell as error:
                values[column.name] = None
                problem = problem or str(error)
                continue
            except WrongColumn as error:
                instead = str(error) or f"set data.{column.setting} to another column"
                raise UserError(
                    f"{where}: expected {column.kind} in column {self.names[column.name]!r}, got a value of type "
                    f"{type(cell).__name__}; fix the row, or {instead}."
                ) from None
            values[column.name] = value
            if column.required and column.is_missing(value):
                problem = problem or f"no {column.name}"
        for column in self.columns:
            problem = problem or column.check(values)
        return Row(values, where, problem, extracted_from=extracted_from)

    def names_files(self, column: Column) -> bool:
        """Whether the cells of a column are paths, of files with the texts."""
        return type(column) is Text and self.names[column.name] == self.file_column

    def _text(self, column: Column, cell: Any, folder: Path) -> tuple[Any, str]:
        """Return a cell with the text of the file that it names or is, if any, and the kind of document.

        Raises:
            BadCell: The file cannot be read.
        """
        if isinstance(cell, list):
            # Of alternatives.
            found = [self._text(column, item, folder) if isinstance(item, TextFile) else (item, "") for item in cell]
            return [item for item, _ in found], "".join(kind for _, kind in found)
        if isinstance(cell, str) and self.names_files(column):
            path = File(column.name, column.setting).parse(cell, folder)
            cell = path and TextFile(path=Path(path))
        if not isinstance(cell, TextFile):
            return cell, ""
        document = self.read(cell)
        return document.text, document.extracted_from

    def read(self, file: TextFile) -> DocumentText:
        """Read a file in memory.

        Raises:
            BadCell: It cannot be read.
        """
        try:
            if file.path is not None:
                return read_document(file.path, self.encoding)
            return text_of(file.content, "", self.encoding)
        except (NotText, UserError) as error:
            raise BadCell(getattr(error, "problem", str(error))) from None

    def document_columns(self, what: str) -> tuple[Text | Media, Label | None]:
        """Return the column of texts, or of media, and the label column, if any, of a source that is not a table.

        Raises:
            UserError: Other columns are required, or none is text or media.
        """
        texts, labels = self.of(Text) or self.of(Media), self.of(Label)
        text, label = texts[:1], labels[:1]
        for column in self.columns:
            if column.required and column not in (*text, *label):
                known = " and ".join(repr(found.name) for found in (*text, *label))
                raise UserError(
                    f"expected a column {self.names[column.name]!r} (data.{column.setting}) in {what}, got only "
                    f"{known or 'text'}; use a csv, tsv, jsonl or parquet file, or 'hub:./FOLDER'."
                )
        if not texts:
            raise UserError(
                f"expected a task that reads text for {what}, got one that does not; use a csv, tsv, jsonl or parquet "
                "file."
            )
        return texts[0], labels[0] if labels else None  # type: ignore[return-value]


def source_names(columns: Sequence[Column], config: Any) -> dict[str, str]:
    """Return the name of each column in the source, by the column's own name; several names are joined by commas.

    Args:
        columns: The columns to read.
        config: The settings, with an attribute for the `setting` of each column.

    Raises:
        UserError: A setting is empty, or two settings name the same column.
        ValueError: The columns do not fit together, which is a mistake in the task.
    """
    names = [column.name for column in columns]
    if len(set(names)) < len(names) or set(names) & set(RESERVED):
        raise ValueError(f"columns must have different names, other than {' and '.join(RESERVED)}, got {names}")
    found: dict[str, str] = {}
    settings: dict[str, str] = {}
    for column in columns:
        if isinstance(column, Text) and column.lines and len(columns) > 1:
            raise ValueError(f"column {column.name!r} has lines of one document, and must be the only one: {names}")
        if isinstance(column, WordLabels) and not any(
            isinstance(other, Words) and other.name == column.of for other in columns
        ):
            raise ValueError(f"column {column.name!r} is for the words of {column.of!r}, which is not a Words column")
        source = getattr(config, column.setting)
        if not source:
            raise UserError(
                f"data.{column.setting} must be a name, got an empty text; leave it out to use the default."
            )
        for name in column.sources(source):
            if name in settings and not column.shares:
                raise UserError(
                    f"data.{settings[name]} and data.{column.setting} must name two columns, got {name!r} for both; "
                    "change one."
                )
            settings[name] = column.setting
        sources = column.sources(source)
        found[column.name] = sources[0] if column.alternative else ", ".join(sources)
    return found


def schema_of(columns: Sequence[Column], config: Any, *, files: bool = True) -> Schema:
    """Schema according to the settings; without `files` it is that of `text_column` instead of `file_column`.

    Raises:
        UserError: A setting is empty, or two settings name the same column.
    """
    delimiter = DELIMITERS.get(config.delimiter, config.delimiter)
    names = source_names(columns, config)
    paths = getattr(config, "file_column", "") if files else ""
    names |= {
        column.name: paths for column in columns if paths and type(column) is Text and column.setting == "text_column"
    }
    shared = tuple(columns), names, config.encoding, delimiter, config.header, config.quoting
    return Schema(*shared, file_column=paths)


def _decoded(cell: Any) -> Any:
    """Return bytes as text; raise UnicodeError for what is not text."""
    if isinstance(cell, bytes):
        return cell.decode("utf-8")
    if isinstance(cell, str) and not cell.isascii():
        cell.encode("utf-8")
    if isinstance(cell, list):
        return [_decoded(item) for item in cell]
    if isinstance(cell, dict):
        return {key: _decoded(item) for key, item in cell.items()}
    return cell
