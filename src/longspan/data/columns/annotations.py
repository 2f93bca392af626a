"""Documents whose spans have labels, as annotation tools write them: columns that read them as words, and writers.

A document is a text with spans: the first character, the one after the last, and a label. These forms are read:

| tool | form |
|---|---|
| spaCy | `{"text", "entities": [[0, 5, "PER"]]}`, `["text", {"entities": ...}]`, `Doc.to_json` (`ents`); https://spacy.io/api/data-formats |
| Prodigy | `{"text", "spans": [{"start", "end", "label"}], "tokens", "answer"}`; https://prodi.gy/docs/api-interfaces#spans |
| Label Studio | tasks, `{"data": {"text"}, "annotations": [{"result": [{"value": {"start", "end", "labels"}}]}]}`, and JSON-MIN, `{"text", "label": [{"start", "end", "labels"}]}`; https://labelstud.io/guide/task_format |
| doccano | `{"text", "label": [[0, 5, "PER"]]}` (or `labels`), `{"text", "entities": [{"start_offset", "end_offset", "label"}]}`; `backend/data_import/pipeline` of doccano/doccano |

Offsets count characters. Nothing is mended: spans that overlap, begin or end inside a word, or lie outside the text make
a bad row.
"""  # noqa: E501

import functools
import json
import re
from abc import abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from longspan.data.columns.kinds import Column, WordLabels, Words
from longspan.data.columns.literals import list_in, literal
from longspan.data.columns.values import BadCell, WrongColumn, composed, described, label_text, number
from longspan.machine.printing import note

_LISTS = ("entities", "spans", "ents", "label", "labels")
_KEYS = ("text", "data", *_LISTS, "annotations", "answer", "tokens")
_MARK = "\0annotated"
_AROUND = 20
_LINE = re.compile(r"[^\r\n]*[\r\n]*")
#: Units of offsets other than characters, with their encodings and bytes per unit.
_UNITS = {"UTF-16 units, as in JavaScript": ("utf-16-le", 2), "bytes of UTF-8": ("utf-8", 1)}


class Span(NamedTuple):
    """Characters of a text from `start` to before `end`, with their label; `quoted` is what the tool says they are."""

    start: int
    end: int
    label: str
    quoted: str | None = None


class Document(NamedTuple):
    """A text, its spans (None if it has no annotations), and the places of its words if the tool names them."""

    text: str
    spans: list[Span] | None
    words: list[tuple[int, int]] | None


@dataclass(frozen=True)
class Annotated(Column):
    """A column that is read from annotations, unless the table has the column itself.

    Attributes:
        text: The column with words, or with the text.
        label: The column with labels of words, or with spans.
        characters: Whether each character is a word.
    """

    text: str = field(default="tokens", kw_only=True)
    label: str = field(default="labels", kw_only=True)
    characters: bool = field(default=False, kw_only=True)
    shares: ClassVar[bool] = True
    alternative: ClassVar[bool] = True

    def sources(self, name: str) -> Sequence[str]:
        return tuple(dict.fromkeys((name, self.text, self.label, *_KEYS)))

    @property
    @abstractmethod
    def source(self) -> str:
        """Name of the column itself in the table."""

    def absent(self, name: str, present: Collection[str]) -> list[str]:
        if not self.required or name in present:
            return []
        texts = {"text", "data", self.text} & {*present}
        spans = {*_LISTS, "annotations", "data", self.label} & {*present}
        return [] if texts and (spans or not self.target) else [name]

    def cell(self, cells: Sequence[Any]) -> Any:
        named = dict(zip(self.sources(self.source), cells, strict=True))
        return {_MARK: named} if _is_annotated(named, self.text, self.label) else cells[0]

    def document(self, cell: Any) -> Document | None:
        """The document of a cell; None for a cell of the column itself.

        Raises:
            BadCell: It is in no known form, or in two.
        """
        return _document(cell[_MARK], self) if isinstance(cell, dict) and _MARK in cell else None

    def places(self, document: Document) -> list[list[tuple[int, int]]]:
        """Places of the words of each line; lines that a span crosses are one."""
        if document.words is None:
            # Its packages take a second to import.
            from longspan.data.text.words import CHARACTERS, PLAIN, word_places

            lines = word_places(document.text, _LINE, CHARACTERS if self.characters else PLAIN)
        else:
            ends = [line.end() for line in _LINE.finditer(document.text)]
            lines = [[one for one in document.words if a < one[1] <= b] for a, b in pairwise([0, *ends])]
        found: list[list[tuple[int, int]]] = []
        for line in filter(None, lines):
            crossed = found and any(
                one.start < found[-1][-1][1] and one.end > line[0][0] for one in document.spans or ()
            )
            found[-1:] = [found[-1] + line] if crossed else [*found[-1:], line]
        return found


@dataclass(frozen=True)
class AnnotatedWords(Annotated, Words):
    """The words of a document; of a text that is read `raw`, the text."""

    @property
    def source(self) -> str:
        return self.text

    def parse(self, cell: Any, folder: Path) -> list[str] | str:
        document = self.document(cell)
        if document is None:
            return Words.parse(self, cell, folder)
        if self.raw:
            # A list of words that was written as text is one.
            return Words.parse(self, document.text, folder)
        if document.spans is None:
            raise BadCell("no labels")
        return Words.parse(self, [document.text[a:b] for line in self.places(document) for a, b in line], folder)


@dataclass(frozen=True)
class AnnotatedLabels(Annotated, WordLabels):
    """The labels of a document's words, in IOB2 where they are of spans."""

    target: bool = field(default=True, kw_only=True)
    kind = 'spans such as [0, 5, "PER"]'

    @property
    def source(self) -> str:
        return self.label

    def parse(self, cell: Any, folder: Path) -> list[str]:
        document = self.document(cell)
        if document is None:
            return WordLabels.parse(self, cell, folder)
        # Without annotations there are no labels, which the row then lacks.
        if document.spans is None:
            return []
        return labels_of(document, [place for line in self.places(document) for place in line])


@dataclass(frozen=True)
class Sentences(Column):
    """Number of words of each sentence of a document: integers that add up to the document's number of words.

    Attributes:
        of: The name of the `Words` column.
    """

    required: bool = field(default=False, kw_only=True)
    of: str = field(default="tokens", kw_only=True)
    kind = "a list of numbers of words"
    dtype: ClassVar[Any] = ["int64"]
    identifies = False

    def parse(self, cell: Any, folder: Path) -> list[int]:
        items = list_in(cell) if isinstance(cell, str) else cell
        if not isinstance(items, list):
            raise WrongColumn
        found = [number(item, self._bad_cell) for item in items]
        if any(item < 0 or item != int(item) for item in found):
            raise self._bad_cell("another number among them")
        return [int(item) for item in found if item]

    def check(self, values: Mapping[str, Any]) -> str:
        sizes, words = values[self.name], values[self.of]
        if sizes is None or not isinstance(words, list) or sum(sizes) == len(words):
            return ""
        return f"{self.name} do not add up to {self.of} (expected {len(words)}, got {sum(sizes)})"


@dataclass(frozen=True)
class AnnotatedSentences(Annotated, Sentences):
    """Numbers of words of the lines of a text with spans.

    Attributes:
        column: The column of a table with such numbers.
    """

    required: bool = field(default=False, kw_only=True)
    column: str = field(default="sentences", kw_only=True)

    @property
    def source(self) -> str:
        return self.column

    def parse(self, cell: Any, folder: Path) -> list[int]:
        document = self.document(cell)
        return Sentences.parse(self, cell, folder) if document is None else [*map(len, self.places(document))]


def labels_of(document: Document, places: Sequence[tuple[int, int]]) -> list[str]:
    """Labels of words in IOB2.

    Args:
        document: A text with spans.
        places: The places of its words.

    Raises:
        BadCell: A span is empty, overlaps another one, or is not made of whole words.
    """
    text, spans = document.text, sorted(document.spans or [])
    starts = {start: number for number, (start, _) in enumerate(places)}
    ends = {end: number for number, (_, end) in enumerate(places)}
    found, before = ["O"] * len(places), None
    for span in spans:
        problem = _problem(text, span, starts, ends)
        if not problem and before is not None and span.start < before.end:
            problem = "overlapping spans"
        if problem:
            other = f"{before.start} to {before.end} and " if problem == "overlapping spans" and before else ""
            raise BadCell(problem, f"{other}{_shown(text, span)}{_hint(text, spans, problem, starts, ends)}")
        first, last = starts[span.start], ends[span.end]
        found[first : last + 1] = [f"B-{span.label}", *[f"I-{span.label}"] * (last - first)]
        before = span
    if max(text, default="") > "\uffff" and all(span.quoted is None for span in spans):
        other_spans = _converted(text, spans, *_UNITS["UTF-16 units, as in JavaScript"])
        if other_spans not in (None, spans) and not any(_problem(text, one, starts, ends) for one in other_spans or ()):
            _note_units()
    return found


@functools.cache
def _note_units() -> None:
    note("offsets of spans in texts with emoji could count characters or UTF-16 units; they are read as characters")


def _problem(text: str, span: Span, starts: Mapping[int, int], ends: Mapping[int, int]) -> str:
    if span.start < 0 or max(span.start, span.end) > len(text):
        return "span outside the text"
    if span.end <= span.start:
        return "empty span"
    covered = text[span.start : span.end]
    if span.quoted is not None and span.quoted != covered:
        return "span with another text"
    if covered.strip() != covered:
        return "white space at the end of a span"
    return "" if span.start in starts and span.end in ends else "span that ends inside a word"


def _shown(text: str, span: Span) -> str:
    start, end = (min(max(place, 0), len(text)) for place in span[:2])
    covered = text[start:end] if end - start <= 2 * _AROUND else f"{text[start : start + _AROUND]}...{text[end - 1]}"
    around = f"{text[max(0, start - _AROUND) : start]}[{covered}]{text[end : end + _AROUND]}"
    said = f", which is to be {span.quoted[:_AROUND]!r}" if span.quoted not in (None, text[start:end]) else ""
    return f"{span.start} to {span.end} of {len(text):,} characters, {span.label!r} at {around!r}{said}"


def _hint(text: str, spans: Sequence[Span], problem: str, starts: Mapping[int, int], ends: Mapping[int, int]) -> str:
    for unit, how in _UNITS.items():
        converted = _converted(text, spans, *how)
        if converted not in (None, [*spans]) and not any(_problem(text, one, starts, ends) for one in converted or ()):
            return f"; offsets fit as {unit}: convert them to characters"
    return "; with data.tokens=characters each character is a word" if "inside" in problem else ""


def _converted(text: str, spans: Sequence[Span], encoding: str, size: int) -> list[Span] | None:
    """Spans whose offsets count other units, as characters; None if they do not fall between characters."""
    place, places = 0, {0: 0}
    for at, character in enumerate(text, 1):
        place += len(character.encode(encoding, "surrogatepass")) // size
        places[place] = at
    if any(offset not in places for span in spans for offset in span[:2]):
        return None
    return [span._replace(start=places[span.start], end=places[span.end]) for span in spans]


def rows_in(value: Any) -> list[dict[str, Any]] | None:
    """Documents with spans in a JSON value; None if it has none, or other rows."""
    rows = [unpaired(item) for item in value] if isinstance(unpaired(value), list) else [unpaired(value)]
    good = all(isinstance(row, dict) and ("data" in row or "text" in row) for row in rows)
    return rows if rows and good and any({*row} & {*_LISTS, "annotations", "predictions"} for row in rows) else None


def json_row(line: str) -> dict[str, Any] | None:
    """The object of a line that is a text with its annotations, as spaCy's training data; None for any other line."""
    try:
        row = unpaired(json.loads(line))
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def encoded(columns: Mapping[str, Any]) -> dict[str, Any]:
    """Columns of a table in memory, those of annotations as JSON, as their parts are of different types."""
    return {name: values if name == "text" else _as_json(values) for name, values in columns.items()}


def _as_json(values: Any) -> Any:
    if isinstance(values, str | bytes | Mapping) or not hasattr(values, "__iter__"):
        return values
    # An iterator is read once.
    values = values if hasattr(values, "__len__") else list(values)
    if not any(isinstance(value, Mapping) or _holds(value) for value in values):
        return values
    return [value if value is None or isinstance(value, str) else json.dumps(value, default=_item) for value in values]


def _item(value: Any) -> Any:
    return value.tolist()


def _holds(value: Any) -> bool:
    """Whether a cell is a list of spans."""
    return isinstance(value, list | tuple) and bool(value) and isinstance(value[0], list | tuple | Mapping)


def unpaired(row: Any) -> Any:
    """A row of spaCy's training data, a text with its annotations, as one object; any other row as it is."""
    pair = isinstance(row, list | tuple) and [type(one) for one in row] == [str, dict]
    return {"text": row[0], **row[1]} if pair else row


def _is_annotated(cells: Mapping[str, Any], text: str, label: str) -> bool:
    words = cells.get(text)
    if isinstance(words, list) and not _holds(words):
        return False
    if isinstance(words, str | bytes):
        spans = (_loaded(cells.get(name)) for name in (label, *_LISTS))
        return any(isinstance(one, dict) or _holds(one) or one == [] for one in spans)
    return cells.get("text") is not None or isinstance(_loaded(cells.get("data")), dict)


def _loaded(cell: Any) -> Any:
    """A list or object, perhaps from JSON; other cells as they are."""
    if isinstance(cell, bytes):
        cell = cell.decode("utf-8", "replace")
    found = literal(cell) if isinstance(cell, str) and re.match(r"\s*[\[({]\s*([\[({\])}]|\")", cell) else None
    return cell if found is None else found


def _document(cells: Mapping[str, Any], column: Annotated) -> Document:
    cells = {name: cell if name == "text" else _loaded(cell) for name, cell in cells.items()}
    if cells.get("answer") in ("reject", "ignore"):
        raise BadCell("annotation that was rejected", f'"answer": "{cells["answer"]}"')
    data, text = cells.get("data"), cells.get(column.text)
    if isinstance(data, dict):
        texts = [name for name, one in data.items() if isinstance(one, str)]
        name = next((name for name in (column.text, "text") if name in texts), texts[0] if len(texts) == 1 else "")
        if not name:
            raise BadCell("no text", f"expected data.text, got {len(texts)} texts; set data.text_column to one of them")
        return Document(data[name], _of_tasks(cells.get("annotations"), column), None)
    text = text if isinstance(text, str) else cells.get("text")
    if not isinstance(text, str):
        raise BadCell("no text", f"got {described(text)}")
    tokens = cells.get("tokens")
    words = [(one["start"], one["end"]) for one in tokens if text[one["start"] : one["end"]].strip()] if (
        isinstance(tokens, list)
        and all(isinstance(one, dict) and {"start", "end"} <= one.keys() for one in tokens)
    ) else None  # fmt: skip
    if not column.target and isinstance(column, Words) and column.raw:
        return Document(text, None, words)
    return Document(text, _listed(cells, column), words)


def _listed(cells: Mapping[str, Any], column: Annotated) -> list[Span] | None:
    present = {name: cells[name] for name in (column.label, *_LISTS) if isinstance(cells.get(name), list | dict)}
    if column.label != "labels" and column.label in present:
        present = {column.label: present[column.label]}
    if len(present) > 1:
        names = " and ".join(map(repr, present))
        raise BadCell("two lists of spans", f"{names}; set data.label_column to one of them")
    for value in present.values():
        if isinstance(value, dict):
            value = next((value[name] for name in _LISTS if isinstance(value.get(name), list)), None)
            if value is None:
                raise BadCell("no spans", "an object without a list of entities or spans")
        return [_span(item) for item in value]
    return None


def _of_tasks(annotations: Any, column: Annotated) -> list[Span] | None:
    """Spans of a task of Label Studio; None if nobody annotated it."""
    valid = [one for one in annotations or [] if isinstance(one, dict) and not one.get("was_cancelled")]
    found = []
    for one in valid:
        results = [item for item in one.get("result") or [] if isinstance(item, dict)]
        if len({item.get("to_name") for item in results if "labels" in str(item.get("type", "labels"))}) > 1:
            raise BadCell("spans of several texts", "keep those of one of them")
        found.append(sorted(_span(item["value"]) for item in results if "labels" in str(item.get("type", "labels"))))
    if any(one != found[0] for one in found):
        raise BadCell("annotations that differ", f"{len(found)} of them; keep one for each task")
    return found[0] if found else None


def _span(item: Any) -> Span:
    quoted = None
    if isinstance(item, dict):
        start, end = (item.get(name, item.get(f"{name}_offset")) for name in ("start", "end"))
        label, quoted = item.get("label", item.get("labels")), item.get("text")
        if isinstance(label, list):
            if len(label) != 1:
                raise BadCell("span without one label", f"{start} to {end} has {len(label)}")
            label = label[0]
    elif isinstance(item, list | tuple) and len(item) == 3:
        start, end, label = item
    else:
        raise BadCell("no spans", f'expected spans such as [0, 5, "PER"], got {described(item)} among them')
    if isinstance(start, bool) or not isinstance(start, int) or isinstance(end, bool) or not isinstance(end, int):
        raise BadCell("span without offsets", f"expected integers, got {described(start)} and {described(end)}")
    name = None if isinstance(label, list | dict) else label_text(label)
    if name is None:
        raise BadCell("span without one label", f"{start} to {end} has none")
    return Span(start, end, composed(name), quoted if isinstance(quoted, str) else None)


# What tools import


def spacy(text: str, spans: Sequence[Span], words: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Object of spaCy's training data: text and entities."""
    return {"text": text, "entities": [list(span[:3]) for span in spans]}


def doccano(text: str, spans: Sequence[Span], words: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Line of doccano's JSONL for sequence labelling."""
    return {"text": text, "label": [list(span[:3]) for span in spans]}


def prodigy(text: str, spans: Sequence[Span], words: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Task of Prodigy's interfaces for spans; `token_end` is the last token."""
    starts, ends = ({place[part]: number for number, place in enumerate(words)} for part in (0, 1))
    tokens = [
        {"text": text[a:b], "start": a, "end": b, "id": number, "ws": text[b : b + 1].isspace()}
        for number, (a, b) in enumerate(words)
    ]
    marked = [
        {"start": a, "end": b, "label": label, "token_start": starts[a], "token_end": ends[b]}
        for a, b, label, _ in spans
    ]
    return {"text": text, "tokens": tokens, "spans": marked}


def label_studio(text: str, spans: Sequence[Span], words: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Task of Label Studio with a prediction, for `<Labels name="label" toName="text">` and `<Text name="text">`."""
    results = [
        {
            "id": f"span-{number}",
            "from_name": "label",
            "to_name": "text",
            "type": "labels",
            "value": {"start": a, "end": b, "text": text[a:b], "labels": [label]},
        }
        for number, (a, b, label, _) in enumerate(spans, 1)
    ]
    return {"data": {"text": text}, "predictions": [{"model_version": "longspan", "result": results}]}


WRITERS = {"spacy": spacy, "prodigy": prodigy, "label-studio": label_studio, "doccano": doccano}
LISTS = frozenset({"label-studio"})
"""Formats that are one JSON list; the others are JSON lines."""


def in_list(texts: Iterator[str]) -> Iterator[str]:
    """Lines of a JSON list of JSON texts."""
    before = "["
    for text in texts:
        yield before + text
        before = ","
    yield "]" if before == "," else "[]"
