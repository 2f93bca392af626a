"""Translation memories in TMX, the exchange format of translation tools: `read_tmx`."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from xml.parsers import expat

from longspan.data.sources.files.opening import open_packed
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
        cells = {column: _of(unit, column) for column in schema.sources}
        if not checked and any(cells[needed] is None for needed in schema.required_names):
            known = list(dict.fromkeys(language for each, _ in _units(path, name) for language in each))
            present = [column for column in schema.sources if _match(known, column) is not None]
            schema.check_present(name, list(dict.fromkeys([*known, *present])))
        checked = True
        yield schema.row(cells, where, path.parent)


def _of(unit: dict[str, str], column: str) -> str | None:
    found = _match(list(unit), column)
    return None if found is None else unit[found]


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
    reader = _Reader(name)
    try:
        with open_packed(path) as stream:
            while chunk := stream.read(_CHUNK):
                reader.parser.Parse(chunk, False)
                yield from reader.take_units()
            reader.parser.Parse(b"", True)
            yield from reader.take_units()
    except expat.ExpatError as error:
        raise UserError(
            f"expected TMX, which is XML, in {name}, got an error at line {error.lineno}, column {error.offset + 1} "
            f"({expat.ErrorString(error.code)}); write it again."
        ) from None


class _Reader:
    """Collects units while a parser goes through a file."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.parser = expat.ParserCreate()
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text
        self.parser.EntityDeclHandler = self._entity
        self.parser.SkippedEntityHandler = self._skipped
        self._done: list[tuple[dict[str, str], str]] = []
        self._unit: dict[str, str] = {}
        self._problem = self._language = ""
        self._parts: list[str] | None = None
        self._size = self._codes = 0

    def take_units(self) -> list[tuple[dict[str, str], str]]:
        """Return the units that are complete, each once."""
        done, self._done = self._done, []
        return done

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        if tag == "tu":
            self._unit, self._problem = {}, ""
        elif tag == "tuv":
            self._language = attributes.get("xml:lang") or attributes.get("lang") or ""
        elif tag == "seg":
            self._parts, self._size, self._codes = [], 0, 0
        elif tag in _CODES:
            self._codes += 1

    def _end(self, tag: str) -> None:
        if tag == "tu":
            self._done.append((self._unit, self._problem))
        elif tag == "seg" and self._parts is not None:
            # Some tools break lines within segments.
            self._unit.setdefault(self._language, " ".join("".join(self._parts).split()))
            self._parts = None
        elif tag in _CODES:
            self._codes -= 1

    def _text(self, text: str) -> None:
        if self._parts is None or self._codes:
            return
        self._size += len(text)
        if self._size > _LONGEST:
            raise UserError(
                f"expected fewer than {_LONGEST:,} characters in a segment of {self.name}, got more; split it."
            )
        self._parts.append(text)

    def _entity(self, entity: str, *_: Any) -> None:
        raise UserError(
            f"expected TMX without entities of its own, got a declaration of {printable(entity)!r} in {self.name}; "
            "write the text itself."
        )

    def _skipped(self, entity: str, is_parameter: bool) -> None:
        self._problem = self._problem or f"unknown entity (&{printable(entity)};)"
