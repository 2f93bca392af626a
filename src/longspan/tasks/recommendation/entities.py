"""Vectors of entities, such as those that MIND comes with."""

from typing import NamedTuple

import numpy as np

from longspan.data.sources.files.decoding import is_damaged, mend, open_text
from longspan.data.sources.files.opening import encoding_of, examine, expand, open_packed
from longspan.errors import UserError
from longspan.machine.printing import printable

NAME = "entity_embedding.vec"
"""What MIND calls the file."""


class EntityVectors(NamedTuple):
    """The `names` of entities and their `vectors`, `(entities, width)` float32."""

    names: list[str]
    vectors: np.ndarray


def read_entity_vectors(setting: str, encoding: str = "utf-8") -> EntityVectors:
    """Read vectors of entities: in each line an identifier and numbers, separated by tabs or spaces.

    Args:
        setting: The file, which may be compressed, or a folder, in which all files called `NAME` are read; of an entity
            that is in several, the first vector counts.
        encoding: The encoding, or "auto".

    Raises:
        UserError: There is no file, a line has no numbers, or vectors differ in width.
    """
    path = expand(setting)
    examine(path, "data.entity_vectors")
    files = sorted(path.rglob(NAME)) if path.is_dir() else [path]
    if not files:
        raise UserError(f"expected a file called {NAME} in the folder {setting!r}, got none; name the file itself.")
    found: dict[str, np.ndarray] = {}
    width, first = 0, ""
    for file in files:
        name = printable(file.name if file == path else str(file.relative_to(path)))
        chosen = encoding_of(file, encoding)
        with open_packed(file) as raw, open_text(raw, name, chosen, "\n") as lines:
            for number, line in enumerate(lines, 1):
                if not line.strip():
                    continue
                place = f"{name}, line {number}"
                if is_damaged(line):
                    raise UserError(f"{place}: expected text in the encoding, got other bytes; {mend(encoding)}.")
                entity, *numbers = line.split()
                vector = _vector(numbers, place)
                if not width:
                    width, first = len(vector), place
                if len(vector) != width:
                    raise UserError(
                        f"expected vectors of {width} numbers as in {first}, got {len(vector)} in {place}; use vectors "
                        "of the same width."
                    )
                found.setdefault(entity, vector)
    if not found:
        raise UserError(f"expected vectors of entities in {setting!r}, got an empty file; name another.")
    return EntityVectors(list(found), np.stack(list(found.values())))


def _vector(numbers: list[str], place: str) -> np.ndarray:
    try:
        vector = np.array(numbers, dtype=np.float32)
    except ValueError:
        vector = np.full(1, np.nan, dtype=np.float32)
    if not len(vector) or not np.isfinite(vector).all():
        raise UserError(f"expected an identifier and numbers in {place}, got something else; correct it.")
    return vector
