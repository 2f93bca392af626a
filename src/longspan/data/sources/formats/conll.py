"""Reading columns of words as the shared tasks of CoNLL have them: a word per line, an empty line after a sentence."""

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from longspan.data.columns.kinds import Column, Words
from longspan.data.sources.files.decoding import open_text
from longspan.data.sources.files.opening import open_packed, packed_suffix
from longspan.data.sources.formats.schema import Row, Schema
from longspan.errors import UserError
from longspan.machine.printing import printable

RAGGED = "ragged columns"
"""The beginning of `Row.problem` where a line has another number of fields than the file's first."""

UNIVERSAL = ("id", "form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
"""The columns of CoNLL-U, https://universaldependencies.org/format.html"""

_DOCUMENT = re.compile(r"#\s*newdoc\b")
# Comments of CoNLL-U, which may have as many fields as words have where spaces separate fields.
_COMMENT = re.compile(r"# (?:newdoc|newpar|sent_id|text|global\.columns)\b")
_START = "-DOCSTART-"
# Of CoNLL-U: several words written as one, and words that were left out.
_NO_WORD = re.compile(r"\d+[-.]\d+")
_FIRST_WORD, _HEAD = re.compile(r"1|1-\d+|0\.1"), re.compile(r"\d+|_")
_SNIFFED = 50
# Lines at the beginning of a file among which one that does not begin with "#" is looked for.
_AHEAD = 100_000


def read_conll(path: Path, schema: Schema) -> Iterator[Row]:
    """Read sentences, or the documents that they form, each a row with its words, labels and `sentences`.

    A line holds the fields of a word, separated by tabs or else by white space; an empty one ends a sentence. Lines
    that begin with "#" are comments in files ending in .conllu. Elsewhere they are words if they have as many fields as
    the first line that begins otherwise. Words can thus be "#text", "#" and, between tabs, "# text". A "# newdoc"
    begins a document; so does "-DOCSTART-", unless there was a "# newdoc".

    Columns are called by their numbers, counted from 1; "tokens" is the first and "labels" the last. Files ending in
    .conllu, and those whose first word has the ten fields of CoNLL-U, have the names of `UNIVERSAL`, too: "tokens" is
    "form" and "labels" is "upos".

    The row of a word with more or fewer fields than the first has a problem.

    Raises:
        UserError: There is no column of a name.
    """
    words = schema.of(Words)[0]
    assert isinstance(words, Words)
    name = printable(path.name)
    indices: dict[str, int] = {}
    width, first = 0, 0
    document = _Document(name)
    marked = False
    with open_packed(path) as raw, open_text(raw, name, schema.encoding, "\n") as lines:
        ahead = _until_word(lines)
        universal = packed_suffix(path) == ".conllu" or _is_universal(ahead)
        layout = _Layout.of(ahead, universal)
        for number, line in enumerate(itertools.chain(ahead, lines, [""]), 1):
            line = line.rstrip("\r\n")
            if not line.strip():
                yield from document.end_sentence(schema, indices, path.parent, alone=not words.documents)
                continue
            if layout.is_comment(line):
                if _DOCUMENT.match(line):
                    marked = True
                    yield from document.end(schema, indices, path.parent)
                    document.start(number)
                continue
            fields = _fields(line)
            if fields[0] == _START and not marked:
                yield from document.end(schema, indices, path.parent)
                document.start(number)
                continue
            if universal and _NO_WORD.fullmatch(fields[0]):
                continue
            if not width:
                width, first = len(fields), number
                indices = _indices(schema, width, name, universal)
            document.add(fields, number, width, first)
        yield from document.end(schema, indices, path.parent)


def _fields(line: str) -> list[str]:
    return line.split("\t") if "\t" in line else line.split()


def _is_universal(ahead: Sequence[str]) -> bool:
    """Whether the first word of a file is one of CoNLL-U: a number, nine more fields, and a number as its head."""
    fields = ahead[-1].rstrip("\r\n").split("\t") if ahead else []
    return len(fields) == len(UNIVERSAL) and bool(_FIRST_WORD.fullmatch(fields[0])) and bool(_HEAD.fullmatch(fields[6]))


def _until_word(lines: Iterable[str]) -> list[str]:
    """Return the first lines, up to one that certainly is a word's: it is not empty and does not begin with "#"."""
    found = []
    for line in itertools.islice(lines, _AHEAD):
        found.append(line)
        if line.strip() and not line.startswith("#"):
            break
    return found


@dataclass(frozen=True)
class _Layout:
    """Layout that separates comments from words whose first character is "#".

    Attributes:
        universal: Whether every line that begins with "#" is a comment.
        tabs: Whether tabs separate fields.
        width: Number of fields of a word; 0 if no line tells.
    """

    universal: bool
    tabs: bool
    width: int

    @classmethod
    def of(cls, ahead: Sequence[str], universal: bool) -> "_Layout":
        """Return the layout that the first lines of a file speak of."""
        certain = [line for line in ahead[-1:] if line.strip() and not line.startswith("#")]
        # If all of them begin with "#", those with tabs are words.
        line = next(iter([*certain, *(line for line in ahead if "\t" in line)]), "").rstrip("\r\n")
        return cls(universal, "\t" in line, len(_fields(line)))

    def is_comment(self, line: str) -> bool:
        """Return whether a line is a comment."""
        if not line.startswith("#"):
            return False
        if self.tabs:
            return self.universal or len(line.split("\t")) != self.width
        return self.universal or bool(_COMMENT.match(line)) or len(line.split()) != self.width


class _Document:
    """The document that is being read."""

    def __init__(self, name: str) -> None:
        self.file = name
        self.start(0, marked=False)

    def start(self, line: int, *, marked: bool = True) -> None:
        self.line, self.marked = line, marked
        self.words: list[list[str]] = []
        self.sentences: list[int] = []
        self.problem = ""
        self.open = 0

    def add(self, fields: list[str], number: int, width: int, first: int) -> None:
        if not self.words:
            self.line = number
        if len(fields) != width:
            expected = f"expected {width} fields as in line {first}, got {len(fields)} in line {number}"
            self.problem = self.problem or f"{RAGGED} ({expected})"
            fields = (fields + [""] * width)[:width]
        self.words.append(fields)
        self.open += 1

    def end_sentence(self, schema: Schema, indices: dict[str, int], folder: Path, *, alone: bool) -> Iterator[Row]:
        if self.open:
            self.sentences.append(self.open)
            self.open = 0
            if alone or not self.marked:
                # Without documents, each sentence is one.
                yield from self.end(schema, indices, folder)

    def end(self, schema: Schema, indices: dict[str, int], folder: Path) -> Iterator[Row]:
        if self.open:
            self.sentences.append(self.open)
        if self.words:
            where = f"{self.file}, line {self.line}"
            cells = {source: [word[index] for word in self.words] for source, index in indices.items()}
            row = schema.row({**cells, "sentences": list(self.sentences)}, where, folder)
            yield row._replace(values={}, problem=self.problem) if self.problem else row
        self.words, self.sentences, self.problem, self.open = [], [], "", 0


def _indices(schema: Schema, width: int, name: str, universal: bool) -> dict[str, int]:
    """Return the place of each column that is read."""
    known = {str(number + 1): number for number in range(width)}
    if universal:
        known |= {column: number for number, column in enumerate(UNIVERSAL[:width])}
    known |= {"tokens": known.get("form", 0), "labels": known.get("upos", width - 1)}
    found = {}
    for column in schema.columns:
        for source in _fields_of(schema, column):
            if source in known:
                found[source] = known[source]
            elif column.required:
                columns = ", ".join(UNIVERSAL) if universal else f"1 to {width}"
                raise UserError(
                    f"expected a column {source!r} in {name}, got the columns {columns}; set data.{column.setting} to "
                    "one of them."
                )
    tokens, labels = (
        [found[source] for column in schema.columns if column.target is target for source in _fields_of(schema, column)
         if source in found]
        for target in (False, True)
    )  # fmt: skip
    if set(tokens) & set(labels):
        raise UserError(
            f"expected words and labels in {name}, got one column; write the label of each word after it, or name the "
            "columns with data.text_column and data.label_column."
        )
    return found


def _fields_of(schema: Schema, column: Column) -> Sequence[str]:
    """Names of a column in files of columns, which have no other form of it."""
    return [schema.names[column.name]] if column.alternative else schema.sources_of(column)


def looks_like_columns(path: Path, encoding: str) -> bool:
    """Say whether the first lines of a file have equally many fields, two or more, or its name says that they do."""
    if packed_suffix(path) in (".conll", ".conllu", ".iob", ".bio"):
        return True
    with open_packed(path) as raw, open_text(raw, printable(path.name), encoding, "\n") as lines:
        read = [line.rstrip("\r\n") for line in itertools.islice(lines, _SNIFFED)]
    found = [line for line in read if line.strip() and not line.startswith("#")]
    widths = {len(line.split("\t") if "\t" in line else line.split()) for line in found}
    return len(found) > 1 and len(widths) == 1 and min(widths) > 1


def list_splits(files: Sequence[Path], names: dict[str, str]) -> dict[str, Path]:
    """Return the file of each split, by the split that its name speaks of, such as en_ewt-ud-dev.conllu.

    Args:
        files: Files of a folder.
        names: Splits by what files are called.

    Raises:
        UserError: Two files are of one split.
    """
    found: dict[str, Path] = {}
    for path in files:
        parts = re.split(r"[^a-z]+", path.name.lower())
        for split in dict.fromkeys(names[part] for part in parts if part in names):
            if split in found:
                raise UserError(
                    f"expected one file for the {split} split, got {found[split].name!r} and {path.name!r}; name the "
                    "files with data.train, data.validation and data.test."
                )
            found[split] = path
    return found
