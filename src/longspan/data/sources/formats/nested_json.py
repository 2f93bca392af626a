"""Rows from one JSON text: a list of objects, at any depth, such as the questions of SQuAD's files."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from longspan.data.sources.files.decoding import is_damaged, mend, open_text
from longspan.data.sources.files.opening import open_packed
from longspan.data.sources.formats.schema import Row, Schema
from longspan.errors import UserError
from longspan.machine.printing import printable


def read_nested(path: Path, schema: Schema) -> Iterator[Row]:
    """Read the rows of a JSON file: its innermost objects that have the first of the columns, in order.

    They inherit texts and numbers of the objects that they are in: in {"data": [{"paragraphs": [{"context": "...",
    "qas": [{"question": "..."}]}]}]} each question has the context of its paragraph. The whole file is held in memory.

    Raises:
        UserError: It is not JSON, not in the encoding, has no such object, or a column is in none of them.
    """
    name = printable(path.name)
    with open_packed(path) as raw, open_text(raw, name, schema.encoding, "\n") as lines:
        text = "".join(lines)
    if is_damaged(text):
        raise UserError(
            f"{name}: expected text in the encoding of the file, got bytes that are not; {mend(schema.encoding)}."
        )
    if not text.strip():
        return
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"expected JSON in {name}, got an error at line {error.lineno}, column {error.colno} "
            f"({error.msg.removesuffix(' at')}); correct it, or name the file .jsonl if each line is an object."
        ) from None
    except (ValueError, RecursionError) as error:
        raise UserError(f"expected JSON in {name}, got an error ({error}); write it again.") from None
    first = schema.sources[0]
    rows = list(_rows(value, {}, first))
    known: dict[str, None] = {}
    for row in rows or _objects(value):
        known.update(dict.fromkeys(row))
    schema.check_present(name, list(known))
    for number, row in enumerate(rows, 1):
        yield schema.row(row, f"{name}, row {number}", path.parent)


def _rows(value: Any, inherited: dict[str, Any], first: str) -> Iterator[dict[str, Any]]:
    if isinstance(value, list):
        for item in value:
            yield from _rows(item, inherited, first)
    elif isinstance(value, dict):
        if first in value:
            yield {**inherited, **value}
            return
        own = {key: item for key, item in value.items() if not isinstance(item, list | dict)}
        for item in value.values():
            yield from _rows(item, {**inherited, **own}, first)


def _objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects, for the names of what there is."""
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _objects(item)
