"""Columns of recordings and the like, each in a file, a part of a file, or an array: `Media` and `Recording`.

Nothing heavy is imported at the top, as declaring columns costs nothing.
"""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from longspan.data.columns.files import File
from longspan.data.columns.values import WrongColumn, described, number


@dataclass(frozen=True)
class Media(File):
    """Something that a file contains, or an array in its place. The value is a dictionary with a "path" or None."""

    #: Suffixes of files that a folder is searched for, each of which has one.
    suffixes: ClassVar[frozenset[str]]
    #: What messages call such files.
    files: ClassVar[str]

    def path_of(self, value: Any) -> str | None:
        found: str | None = None if value is None else value["path"]
        return found

    def paths(self, values: Any) -> list[str | None]:
        import pyarrow.compute as pc

        # Not the samples next to them.
        found: list[str | None] = pc.struct_field(values, "path").to_pylist()
        return found

    def cells(self, values: Any) -> list[Any]:
        # An array, or the one in an object, as its type says what its whole numbers mean.
        import pyarrow.types as types

        kind, found = values.type, super().cells(values)
        if not types.is_struct(kind):
            number = _number(kind)
            return found if number is None else [_array(cell, number) for cell in found]
        number = next((_number(part.type) for part in kind if part.name == "array"), None)
        if number is None:
            return found
        return [cell and {**cell, "array": _array(cell["array"], number)} for cell in found]

    def _as_object(self, own: Any) -> dict[str, Any]:
        """Return the object of a cell, or one with the path, the bytes or the array that it is."""
        key = "path" if isinstance(own, str) else "bytes" if isinstance(own, bytes | memoryview) else "array"
        found = dict(own) if isinstance(own, Mapping) else {key: own}
        if found.get("bytes") is not None:
            # Bytes elsewhere are text.
            found["bytes"] = memoryview(found["bytes"])
        return found

    def size(self, value: Any) -> int:
        return super().size(self.path_of(value)) if self.path_of(value) else self.stored(value)

    @abstractmethod
    def stored(self, value: Any) -> int:
        """Return the bytes of a value that is in memory."""


def _number(kind: Any) -> Any:
    """Return the type, as NumPy has it, of the whole numbers in lists of a type of arrow; None for other values."""
    import pyarrow.types as types

    kind = getattr(kind, "storage_type", kind)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner = kind.value_type
        return inner.to_pandas_dtype() if types.is_integer(inner) else _number(inner)
    return None


def _array(cell: Any, number: Any) -> Any:
    """Return a list of numbers of a type as an array; the list, if its rows have different sizes."""
    import numpy as np

    try:
        return None if cell is None else np.asarray(cell, number)
    except (ValueError, TypeError):
        return cell


@dataclass(frozen=True)
class Recording(Media):
    """A recording: a path, perhaps with a start and an end; an array of samples, or the bytes of a file.

    A cell is a path, a list of samples, or an object: {"path", "start", "end"}, {"array", "sampling_rate"} or
    {"bytes"}, as in data sets of the Hub. The value has the keys "path", "bytes", "samples" (n,), the mean of channels,
    "rate" (of samples; 0 for that of the task), "start" and "end" (seconds, or None).

    Attributes:
        start: The column with the start in seconds, where the source has one.
        end: The column with the end.
    """

    start: str = field(default="start", kw_only=True)
    end: str = field(default="end", kw_only=True)
    kind = "a recording: a path, a list of samples, or an object with either"
    dtype: ClassVar[Any] = {
        "path": "string",
        "bytes": "binary",
        "samples": ["float32"],
        "rate": "int32",
        "start": "float64",
        "end": "float64",
    }
    suffixes = frozenset((".wav", ".flac", ".ogg", ".oga", ".opus", ".mp3", ".aif", ".aiff", ".au", ".caf", ".w64"))
    files = "audio files"
    #: The first of its sources is its own; the others need not be there.
    alternative = True

    def given(self, cell: Any) -> Any:
        if isinstance(cell, Mapping):
            return {**cell, "array": self.given(cell["array"])} if cell.get("array") is not None else cell
        first = cell[0] if isinstance(cell, list | tuple) and cell else None
        if not hasattr(cell, "dtype") and not hasattr(first, "dtype"):
            return cell
        import numpy as np

        from longspan.models.hub.feature_extraction import scaled

        # Before it becomes a list of Python's numbers, which say nothing about its type.
        try:
            found = scaled(np.asarray(cell))
        except (ValueError, TypeError):
            return cell
        return cell if found is None else found

    def sources(self, name: str) -> Sequence[str]:
        return name, self.start, self.end

    def cell(self, cells: Sequence[Any]) -> Any:
        own, start, end = cells
        if own is None:
            return None
        times = {key: value for key, value in (("start", start), ("end", end)) if value not in (None, "")}
        return self._as_object(own) | times

    def parse(self, cell: Any, folder: Path) -> dict[str, Any] | None:
        path, content, array = cell.get("path"), cell.get("bytes"), cell.get("array")
        if content is None and array is None and not isinstance(path, str):
            raise WrongColumn
        found: dict[str, Any] = dict.fromkeys(("path", "bytes", "samples", "start", "end")) | {"rate": 0}
        if content is not None:
            found["bytes"] = bytes(content)
        elif array is not None:
            found |= {"samples": self._samples(array), "rate": self._rate(cell.get("sampling_rate"))}
        else:
            found["path"] = super().parse(path, folder)
            if found["path"] is None:
                return None
        start, end = (self._seconds(cell.get(name)) for name in ("start", "end"))
        if end is not None and end <= (start or 0.0):
            raise self._bad_cell(f"the end {end:g} at or before the start {start or 0:g}")
        if array is not None and (start is not None or end is not None):
            raise self._bad_cell("an array with start or end, which are for files")
        return found | {"start": start, "end": end}

    def content(self, value: Any) -> bytes:
        """Return the hash of the file's bytes, or of the samples, with start and end."""
        import numpy as np

        digest = hashlib.sha256(repr((value["start"], value["end"])).encode())
        if value["path"] is not None:
            digest.update(super().content(value["path"]))
        else:
            digest.update(value["bytes"] or np.asarray(value["samples"], np.float32).tobytes())
        return digest.digest()

    def stored(self, value: Any) -> int:
        if value is None:
            return 0
        return len(value["bytes"] or ()) + (0 if value["samples"] is None else 4 * len(value["samples"]))

    def _samples(self, array: Any) -> list[float]:
        import numpy as np

        from longspan.models.hub.feature_extraction import scaled

        try:
            found = scaled(np.asarray(array))
        except (ValueError, TypeError):
            raise self._bad_cell(described(array)) from None
        if found is None:
            raise self._bad_cell("whole numbers of unknown type; give numbers from -1 to 1, or a NumPy array of int16")
        if found.ndim not in (1, 2) or not found.size:
            raise self._bad_cell(f"an array of shape {found.shape}")
        if found.ndim == 2 and found.shape[0] < found.shape[1]:
            # Channels first, as in torchaudio.
            found = found.T
        samples: list[float] = found.reshape(len(found), -1).mean(1).tolist()
        return samples

    def _rate(self, rate: Any) -> int:
        if rate is None:
            return 0
        found = number(rate, self._bad_cell)
        if not 1 <= found < 2**31:
            raise self._bad_cell(f"{found:g} samples per second")
        return int(found)

    def _seconds(self, value: Any) -> float | None:
        if value is None or (isinstance(value, str) and not value.strip()):
            return None
        found = number(value, self._bad_cell)
        if found < 0:
            raise self._bad_cell(f"{found:g} seconds")
        return found
