"""Decoding text: whole documents with `decode`, and lines as they come with `open_text`."""

import codecs
import io
from collections.abc import Iterator
from contextlib import contextmanager
from encodings.aliases import aliases
from typing import BinaryIO, TextIO

from longspan.data.sources.files.encodings import AUTO, UNKNOWN, find_encoding_of
from longspan.errors import UserError, did_you_mean

LONGEST_LINE = 1 << 30
"""Maximum number of characters in a line, so that a small compressed file cannot fill the memory."""

_BOM = "\ufeff"
_BROKEN_BYTES = "longspan.broken"


def _mark(error: UnicodeError) -> tuple[str, int]:
    """Replace undecodable bytes by a lone surrogate, so that reading continues and the row can be reported."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\udcff", error.end


codecs.register_error(_BROKEN_BYTES, _mark)


_BINARY = {
    b"PK\x03\x04": "an office file or a ZIP archive",
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1": "an office file",
    b"%PDF-": "a PDF",
    b"{\\rtf": "rich text",
    b"\x1f\x8b\x08": "a gzip file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"\xfd7zXZ\x00": "an xz file",
    b"PAR1": "Parquet",
    b"SQLite format 3\x00": "an SQLite database",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
    b"\x78\x9f\x3e\x22": "a winmail.dat of Outlook",
}
"""Kinds of files that are no text in any encoding, by their first bytes."""


def binary_kind(head: bytes) -> str:
    """The kind of a file that is no text, by its first bytes; empty if it may be text."""
    return next((kind for start, kind in _BINARY.items() if head.startswith(start)), "")


class NotText(ValueError):
    """A document that is not text in its encoding.

    Args:
        byte: The position of the first invalid byte, from 0; None if it is not about bytes.
        problem: The problem, as rows have it.
    """

    def __init__(self, byte: int | None, problem: str) -> None:
        super().__init__(problem)
        self.byte, self.problem = byte, problem

    def place(self, where: str) -> str:
        """The place of the problem in the file at a place."""
        return where if self.byte is None else f"{where}, byte {self.byte}"


def check_encoding(name: str) -> None:
    """Raise UserError unless `name` is the name of a text encoding, or "auto"."""
    if name == AUTO:
        return
    try:
        codecs.lookup(name)
        "".encode(name)
    except (LookupError, ValueError):
        known = [alias.replace("_", "-") for pair in aliases.items() for alias in pair]
        hint = did_you_mean(name.lower(), known) or "try auto, utf-8, utf-16, latin-1 or cp1252."
        raise UserError(f"data.encoding must be the name of a text encoding, or 'auto', got {name!r}; {hint}") from None


def encoding_name(encoding: str) -> str:
    """Return the name of an encoding as messages show it."""
    return "UTF-8" if codecs.lookup(encoding).name == "utf-8" else encoding


def broken(encoding: str) -> str:
    """Return the problem of rows that are not text in the encoding."""
    return UNKNOWN if encoding == AUTO else f"broken {encoding_name(encoding)}"


def mend(encoding: str) -> str:
    """Remedy for text that is not in the encoding."""
    if encoding == AUTO:
        return "save the file as UTF-8, or set data.encoding to the name of its encoding"
    return (
        f"save the file as {encoding_name(encoding)}, or set data.encoding=auto to have each file's encoding found out "
        "(or to its name)"
    )


def detected_encoding(encoding: str) -> str:
    """Return an encoding that "auto" found as rows have it: empty if it is UTF-8."""
    return "" if encoding == "utf-8" else encoding.replace("_", "-")


def is_damaged(text: str) -> bool:
    """Return whether a text contains lone surrogates, which mark undecodable bytes."""
    if text.isascii():
        return False
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def decode(content: bytes, encoding: str, likely: str = "") -> tuple[str, str]:
    """Return bytes as text without a byte order mark, and the encoding that "auto" found.

    The latter is empty for UTF-8, and with any other `encoding`. `likely` is as for `find_encoding`.

    Raises:
        NotText: They are not text in the encoding.
    """
    if kind := binary_kind(content):
        raise NotText(0, f"not text ({kind})")
    chosen = encoding
    if encoding == AUTO:
        # Where nothing fits, UTF-8 says which byte is the first that does not.
        found = find_encoding_of(content, likely)
        chosen = found or "utf-8"
    try:
        if codecs.lookup(chosen).name == "utf-8":
            return str(content, "utf-8").removeprefix(_BOM), ""
        # Unlike `str`, this requires a byte order mark where the encoding does, and does not guess.
        text = codecs.getincrementaldecoder(chosen)().decode(content, True).removeprefix(_BOM)
    except UnicodeError as error:
        problem = broken(chosen) if encoding != AUTO or found else UNKNOWN
        raise NotText(getattr(error, "start", 0), problem) from None
    return text, detected_encoding(chosen) if encoding == AUTO else ""


@contextmanager
def open_text(stream: BinaryIO, name: str, encoding: str, newline: str) -> Iterator[Iterator[str]]:
    """Yield the lines of a stream, without its byte order mark; a lone surrogate marks undecodable bytes.

    Args:
        stream: The bytes; the stream is left open.
        name: Its name in messages.
        encoding: Its encoding.
        newline: As for `open`: "" for any line break, "\\n" for that one only; line breaks are kept as they are.

    Raises:
        UserError: A line is longer than `LONGEST_LINE`, or a required byte order mark is missing.
    """
    file = io.TextIOWrapper(stream, encoding, errors=_BROKEN_BYTES, newline=newline)
    try:
        yield _lines(file, name)
    except UnicodeError as error:
        raise UserError(
            f"{name}: expected {encoding_name(encoding)}, got another encoding ({error}); {mend(encoding)}."
        ) from None
    finally:
        if not file.closed:
            file.detach()


def _lines(file: TextIO, name: str) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise UserError(
                f"expected fewer than {LONGEST_LINE:,} characters in a line, got more in {name}, line {number}; split "
                "it "
                "into several rows."
            )
        yield line.removeprefix(_BOM) if number == 1 else line
