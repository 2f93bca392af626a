"""Rows about parts of one file, such as segments of a recording, as one row: `merged_rows`."""

import json
from collections.abc import Iterable, Iterator

from longspan.data.columns.files import File
from longspan.data.columns.values import BadCell
from longspan.data.sources.formats.schema import Row, Schema

_AGAIN = "a recording that is no file and is in a row before, too (one row may have a list of all its segments)"


def merged_rows(rows: Iterable[Row], schema: Schema) -> Iterator[Row]:
    """Yield rows, those of one file as one, in the order of the first of each.

    All columns but those that merge are equal in the rows of one file. A bad row makes that one bad, as the other rows
    alone would be wrong about the file. Rows whose value is no file, such as an array, come first, as they are. They
    are not kept to be merged, so a second row with the same value is bad.
    """
    (file,) = schema.of(File)
    assert isinstance(file, File)
    merging = [column for column in schema.columns if column.merges]
    found: dict[str, list[Row]] = {}
    contents: set[bytes] = set()
    for row in rows:
        value = row.values.get(file.name)
        if value is None:
            yield row
            continue
        if file.path_of(value) is None:
            content = file.content(value)
            yield row._replace(problem=row.problem or _AGAIN) if content in contents else row
            contents.add(content)
            continue
        own = {name: value for name, value in row.values.items() if name not in {column.name for column in merging}}
        found.setdefault(json.dumps(own), []).append(row)
    for same in found.values():
        bad = next((row for row in same if row.problem), None)
        if bad is not None or len(same) == 1:
            yield bad or same[0]
            continue
        first = same[0]
        try:
            values = {column.name: column.merged([row.values[column.name] for row in same]) for column in merging}
        except BadCell as error:
            yield first._replace(problem=str(error))
            continue
        yield first._replace(values={**first.values, **values})
