"""A column of paths: `File`."""

import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longspan.data.columns.kinds import Column
from longspan.data.columns.values import WrongColumn, described
from longspan.data.fingerprints import file_digest
from longspan.data.sources.files.opening import expand


@dataclass(frozen=True)
class File(Column):
    """A file, by its path: absolute, or relative to the folder of the table. The value is the absolute path."""

    kind = "the path of a file"
    dtype = "string"

    def path_of(self, value: Any) -> str | None:
        """Return the path in a value; None if it has none."""
        found: str | None = value
        return found

    def paths(self, values: Any) -> list[str | None]:
        """Return the paths in the values of a data set, a column of Arrow."""
        found: list[str | None] = values.to_pylist()
        return found

    def content(self, value: Any) -> bytes:
        """Return the hash of the file's bytes; of its path if it has gone, which whoever reads it then says."""
        try:
            return bytes.fromhex(file_digest(Path(value or "")))
        except OSError:
            return (value or "").encode()

    def size(self, value: Any) -> int:
        """Return the bytes of the file; 0 if it has gone, which whoever reads it then says."""
        try:
            return Path(value).stat().st_size if value else 0
        except OSError:
            return 0

    def parse(self, cell: Any, folder: Path) -> Any:
        if not isinstance(cell, str):
            raise WrongColumn
        if not cell.strip():
            return None
        try:
            path = (folder / expand(cell.strip())).absolute()
            mode = path.stat().st_mode
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "no path"
            raise self._bad_cell(f"{_path(cell)}: {reason}") from None
        if not stat.S_ISREG(mode):
            raise self._bad_cell(
                f"{_path(cell)}, which is {'a folder' if stat.S_ISDIR(mode) else 'not a regular file'}"
            )
        return str(path)


def _path(cell: str) -> str:
    """Return a path for messages, unless it may be a document."""
    return repr(cell) if len(cell.split()) == 1 and len(cell) <= 255 else described(cell)
