"""Text from data, files and labels as it is shown: no control character of it reaches a terminal or a page."""

import contextlib
import html
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from typing import Any

# What JSON leaves as it is, and terminals and editors obey: control characters and those that turn the direction.
_UNSAFE = re.compile("[\x7f-\x9f\u2028\u2029\u200e\u200f\u202a-\u202e\u2066-\u2069]")
_NAMED = 50
# What tools take for the end of a line or of a field, and surrogates, which UTF-8 lacks.
_BREAKS = re.compile("[\t\n\r\v\f\x1c-\x1e\x85\u2028\u2029]")
_SURROGATES = re.compile("[\ud800-\udfff]")
_silent: ContextVar[bool] = ContextVar("longspan_silent", default=False)


def printable(name: str) -> str:
    """Return a name for messages, in one line: what cannot be printed is escaped, undecodable bytes too."""
    return name if name.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in name)


def unbroken(text: str) -> str:
    """Return a text for a field of a file in columns: without line breaks and tabs, which become spaces."""
    return _SURROGATES.sub("\ufffd", _BREAKS.sub(" ", text))


def printable_lines(text: str) -> str:
    """Return a text of several lines with what cannot be printed in them escaped, except for tabs."""
    return "".join(part if part in "\n\t" else printable(part) for part in re.split("([\n\t])", text))


def note(sentence: str) -> None:
    """Print one sentence, given without its full stop, on standard error."""
    # Each of several processes gets here; one says so.
    if os.environ.get("RANK", "0") == "0" and not _silent.get():
        print(f"longspan: {printable(sentence)}.", file=sys.stderr)


@contextlib.contextmanager
def silenced() -> Iterator[None]:
    """Print no notes during the `with` block: they would come once for each batch."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def json_text(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON in UTF-8 that a terminal can show: control characters are escaped."""
    written = json.dumps(value, indent=indent, default=str, ensure_ascii=False)
    return _UNSAFE.sub(lambda found: f"\\u{ord(found[0]):04x}", written)


def markdown_cell(text: str) -> str:
    """Return the text of a cell of a table in Markdown, in which nothing is markup."""
    return html.escape(printable(text), quote=False).replace("|", "\\|").replace("`", "\\`")


def code_names(names: Sequence[str]) -> str:
    """Return names as code in Markdown, the first `_NAMED` of them, and how many more there are."""
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(_code, names[:_NAMED])) + more


def _code(name: str) -> str:
    """Return a name as code in Markdown, between more backticks than it has in a row."""
    longest = max(map(len, re.findall("`+", name)), default=0)
    fence, space = "`" * (longest + 1), " " if longest else ""
    return f"{fence}{space}{printable(name)}{space}{fence}"


BARS = "LONGSPAN_BARS"
"""Environment variable that a process sets where it shows the standard error of another one on a terminal."""


def shows_bars() -> bool:
    """Return whether progress bars on standard error are updated in place: on a terminal, or in a notebook."""
    return sys.stderr.isatty() or BARS in os.environ or "ipykernel" in sys.modules
