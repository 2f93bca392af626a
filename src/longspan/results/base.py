"""Results as JSON and, in notebooks, as tables and figures, derived from the fields of a dataclass: `Result`."""

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from longspan import options
from longspan.results import html


class Result:
    """Base of what verbs return, a dataclass.

    Metadata of its fields say what is special about them:

    - `merged` and `LAST`: what JSON has in place of a field, after all other fields;
    - `tabled`: rows that notebooks show as a table;
    - `figures`: the folder of figures that notebooks show.

    With an `error`, JSON has that and the fields without defaults.
    """

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON.

        Raises:
            ValueError: Two parts have one name.
        """
        own, merged, failed = {}, [], getattr(self, "error", None) is not None
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            if failed and field.name != "error" and options.default(field) is not options.REQUIRED:
                continue
            value, entries = getattr(self, field.name), field.metadata.get("entries")
            if entries is None:
                own[field.name] = plain(value)
            else:
                merged.append(plain(entries(field.name, value)))
        for part in merged:
            if taken := sorted(own.keys() & part.keys()):
                raise ValueError(
                    f"expected details and scores by names that {type(self).__name__} does not have, got {taken[0]!r}; "
                    "rename it."
                )
            own |= part
        return own

    def _repr_html_(self) -> str | None:
        # None leaves it to a notebook.
        return self.html() or None

    def html(self) -> str:
        """Tables and figures for notebooks; "" for results without any."""
        tables, pictures = "", ""
        for field in dataclasses.fields(self):  # type: ignore[arg-type]
            value = getattr(self, field.name)
            if (shown := field.metadata.get("tabled")) is not None and value:
                tables += html.records([shown(row) for row in plain(value)])
            if pattern := field.metadata.get("figures"):
                pictures += "".join(map(html.figure, sorted(Path(value).glob(pattern))))
        return tables + pictures


def plain(value: Any) -> Any:
    """A value as JSON, with dictionaries in place of dataclasses: `dataclasses.asdict` without copies of the rest."""
    if isinstance(value, Result):
        return value.to_dict()
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list | tuple) else value


def merged(entries: Callable[[str, Any], Mapping[str, Any]] = lambda _, value: plain(value)) -> dict[str, Any]:
    """Metadata of a field whose entries JSON has in its place; `entries` turns its name and value into them."""
    return {"entries": entries}


#: Not in JSON; and last in JSON, where there is anything in it.
HIDDEN = merged(lambda name, value: {})
LAST = merged(lambda name, value: {name: value} if value not in (None, "", {}) else {})


def tabled(*columns: str, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Metadata of a field with rows that notebooks show as a table: all columns but some, or these alone."""
    return {"tabled": lambda row: {name: row.get(name) for name in columns or row if name not in without}}


def figures(pattern: str) -> dict[str, Any]:
    """Metadata of a field with a folder, whose figures of such names notebooks show."""
    return {"figures": pattern}
