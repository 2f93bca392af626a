"""Translation memories in TMX, the exchange format of translation tools: `read_tmx`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.parsers import expat

from longspan.data.sources.files.opening import open_packed
from longspan.data.sources.files.xml_events import xml_events
from longspan.data.sources.formats.schema import Row, Schema
from longspan.errors import UserError
from longspan.machine.printing import printable

SUFFIX = ".tmx"
_CHUNK = 1 << 16
#: Elements within a segment whose contents are codes of another format, not text.
_CODES = frozenset(("bpt", "ept", "it", "ph", "ut"))
_LONGEST = 1 << 28


def read_tmx(path: Path, schema: Schema) -> Iterator[Row]:
    """Read the units of a TMX file as rows, in constant memory; columns are languages.

    A column "en" is read from "en", in any case, or else from a variety such as "en-US". Codes in segments are left
    out. Entities that a file declares are refused, and nothing is fetched from anywhere.

    Raises:
        UserError: The file is not XML, declares entities, is damaged, or no unit has one of the languages.
    """
    name = printable(path.name)
    checked = False
    for number, (unit, problem) in enumerate(_units(path, name), 1):
        where = f"{name}, unit {number}"
        if problem:
            yield Row({}, where, problem)
            continue
        found = {column: _match(list(unit), column) for column in schema.sources}
        cells = {column: None if language is None else unit[language] for column, language in found.items()}
        if not checked and any(cells[needed] is None for needed in schema.required_names):
            known = list(dict.fromkeys(language for each, _ in _units(path, name) for language in each))
            present = [column for column in schema.sources if _match(known, column) is not None]
            schema.check_present(name, list(dict.fromkeys([*known, *present])))
        checked = True
        yield schema.row(cells, where, path.parent)


def _match(languages: Sequence[str], column: str) -> str | None:
    """Return the language that a column names: itself, or else the first variety of it."""
    wanted = column.lower()
    for same in (str.lower, lambda language: language.lower().replace("_", "-").partition("-")[0]):
        for language in languages:
            if same(language) == wanted:
                return language
    return None


def _units(path: Path, name: str) -> Iterator[tuple[dict[str, str], str]]:
    """Yield the text of each unit by language, and the problem with it, if any."""

    def refuse(entity: str, *_: Any) -> None:
        raise UserError(
            f"expected TMX without entities of its own, got a declaration of {printable(entity)!r} in {name}; write "
            "the text itself."
        )

    unit: dict[str, str] = {}
    problem = language = ""
    parts: list[str] | None = None
    size = codes = 0
    try:
        with open_packed(path) as stream:
            for event, tag, value in xml_events(iter(lambda: stream.read(_CHUNK), b""), refuse):
                if event == "text" and parts is not None and not codes:
                    size += len(value)
                    if size > _LONGEST:
                        raise UserError(
                            f"expected fewer than {_LONGEST:,} characters in a segment of {name}, got more; split it."
                        )
                    parts.append(value)
                elif event == "skipped":
                    problem = problem or f"unknown entity (&{printable(tag)};)"
                elif tag in _CODES:
                    codes += 1 if event == "start" else -1
                elif event == "start" and tag == "tu":
                    unit, problem = {}, ""
                elif event == "start" and tag == "tuv":
                    language = value.get("xml:lang") or value.get("lang") or ""
                elif event == "start" and tag == "seg":
                    parts, size, codes = [], 0, 0
                elif event == "end" and tag == "tu":
                    yield unit, problem
                elif event == "end" and tag == "seg" and parts is not None:
                    # Some tools break lines within segments.
                    unit.setdefault(language, " ".join("".join(parts).split()))
                    parts = None
    except expat.ExpatError as error:
        raise UserError(
            f"expected TMX, which is XML, in {name}, got an error at line {error.lineno}, column {error.offset + 1} "
            f"({expat.ErrorString(error.code)}); write it again."
        ) from None
