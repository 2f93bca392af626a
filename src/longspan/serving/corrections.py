"""Labels that people give on the page: appended to a table that training reads, `Corrections`, and lists to label."""

import csv
import datetime
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from longspan.data.columns.kinds import Column, Label, Labels, Text
from longspan.data.columns.media import Media
from longspan.data.sources.formats.schema import Row
from longspan.errors import UserError, check_choice
from longspan.machine.printing import json_text
from longspan.results.outputs import append_line, folder_in, write_new
from longspan.serving.model import Refusal, Service


class Corrections:
    """A table of examples with their labels, a JSON object a line; the last line about an example counts.

    Args:
        service: The run.
        path: The table. Pictures and recordings go into a folder next to it.

    Attributes:
        possible: Whether the labels of this task can be chosen: one column of them, and texts, pictures or recordings.
    """

    def __init__(self, service: Service, path: Path) -> None:
        self.service, self.path = service, path
        data = service.run.recipe.data
        targets = [column for column in service.run.task.columns(data) if column.target]
        self.target: Column | None = targets[0] if len(targets) == 1 else None
        kinds = isinstance(self.target, Label | Labels) and all(
            isinstance(one, Text | Media) for one in service.columns if one.required
        )
        self.possible = bool(kinds and service.labels)

    def add(self, rows: Sequence[Row], labels: Sequence[str]) -> int:
        """Append an example, the only one of `rows`, with its labels, and return how many lines there are.

        Raises:
            UserError: The task has no such labels, or the example cannot be read.
        """
        if not self.possible or self.target is None:
            raise Refusal(409, f"expected a task with labels to choose, got {self.service.run.task.name!r}.")
        if len(rows) != 1:
            raise UserError(f"expected one example to correct, got {len(rows):,}; send one.")
        row = rows[0]
        if row.problem:
            raise UserError(f"{row.where}: {row.problem}")
        several = isinstance(self.target, Labels)
        if not several and len(labels) != 1:
            raise UserError(f"expected one label, got {len(labels)}; choose one.")
        for label in labels:
            check_choice("label", label, self.service.labels)
        cells = {self._name(column): self._cell(row, column) for column in self.service.columns}
        line = {name: cell for name, cell in cells.items() if cell is not None}
        line[getattr(self.service.run.recipe.data, self.target.setting)] = list(labels) if several else labels[0]
        line["corrected"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        return append_line(self.path, json_text(line))

    def labels_of(self, given: Any) -> list[str]:
        """Labels that an example of a list has; empty if it was not labelled yet."""
        return self._labelled().get(self._key(given), [])

    def first_open(self, listed: Sequence[dict[str, Any]]) -> int:
        """Number of the first example of a list without a label; that after the last if all have one."""
        labelled = self._labelled()
        places = (number for number, one in enumerate(listed) if self._key(one["input"]) not in labelled)
        return next(places, len(listed))

    def _labelled(self) -> dict[str, list[str]]:
        """Labels by the other columns of their examples."""
        found: dict[str, list[str]] = {}
        if self.target is None or not self.path.is_file():
            return found
        name = getattr(self.service.run.recipe.data, self.target.setting)
        with self.path.open(encoding="utf-8") as file:
            for number, text in enumerate(file, 1):
                try:
                    line = json.loads(text)
                    labels = line[name]
                except (ValueError, TypeError, KeyError):
                    raise UserError(
                        f"{self.path}, line {number}: expected a JSON object with {name!r}, got something else; mend "
                        "or remove the line."
                    ) from None
                found[self._key(line)] = labels if isinstance(labels, list) else [labels]
        return found

    def _key(self, cells: dict[str, Any]) -> str:
        # An empty cell is none.
        return json_text([cells.get(self._name(column)) or None for column in self.service.columns])

    def _name(self, column: Column) -> str:
        return self.service.schema.names[column.name]

    def _cell(self, row: Row, column: Column) -> Any:
        value = row.values.get(column.name)
        if not isinstance(column, Media) or value is None:
            return value
        content = value["bytes"]
        if content is None:
            raise UserError("expected a file to correct, got an array; send the bytes of a file.")
        suffix = Path(row.where).suffix.lower()
        name = hashlib.sha256(content).hexdigest()[:32] + (suffix if suffix in column.suffixes else "")
        folder = folder_in(self.path.parent, f"{self.path.stem}-files")
        write_new(folder / name, content)
        return f"{folder.name}/{name}"


def read_list(service: Service, path: Path) -> list[dict[str, Any]]:
    """Examples of a table of `longspan suggest`, in its order: inputs of `/predict`, with what else it says.

    Raises:
        UserError: It is missing, or lacks a column.
    """
    needed = [service.schema.names[column.name] for column in service.columns if column.required]
    names = [name for column in service.columns for name in service.schema.sources_of(column)]
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            csv.field_size_limit(2**31 - 1)
            found = list(csv.DictReader(file))
    except OSError as error:
        raise UserError(f"expected a table to label at {str(path)!r}, got an error ({error.strerror}).") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"expected a csv file in UTF-8 at {str(path)!r}, got another ({error}); save it so.") from None
    if not found or any(name not in found[0] for name in needed):
        raise UserError(
            f"expected rows with the columns {', '.join(map(repr, needed))} in {str(path)!r}, got others or none; make "
            "it with `longspan suggest`."
        )
    return [
        {"input": {name: row[name] for name in names if row.get(name)}, "where": row.get("where") or ""}
        for row in found
    ]
