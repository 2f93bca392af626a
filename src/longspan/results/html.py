"""HTML for notebooks and pages: tables and figures without scripts or further files."""

import base64
import html
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: The first bytes of a PNG file.
_PNG = b"\x89PNG\r\n\x1a\n"


def table(headers: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table; numbers have four digits, and what is missing is empty."""
    head = "".join(f"<th>{html.escape(header)}</th>" for header in headers)
    body = "".join(f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def records(found: Sequence[Mapping[str, Any]], most: int = 20) -> str:
    """A table with a row for each of the first `most` records."""
    headers = list(dict.fromkeys(name for record in found[:most] for name in record))
    more = f"<p>{len(found) - most:,} more</p>" if len(found) > most else ""
    return table(headers, ([record.get(name) for name in headers] for record in found[:most])) + more


def paragraph(text: str) -> str:
    """A text as a paragraph."""
    return f"<p>{html.escape(text)}</p>"


def figure(path: Path) -> str:
    """A PNG figure as part of the page; nothing where there is no such file."""
    address = png_address(path)
    return f'<img alt="{html.escape(path.stem)}" src="{address}">' if address else ""


def png_address(path: Path) -> str:
    """A PNG figure as a `data:` address; "" where there is none.

    A run folder may come from a stranger: what a link leads to, and what is no PNG file, does not get into a page.
    """
    if path.is_symlink() or not path.is_file():
        return ""
    content = path.read_bytes()
    return f"data:image/png;base64,{base64.b64encode(content).decode()}" if content.startswith(_PNG) else ""


def _cell(cell: Any) -> str:
    if cell is None:
        return ""
    if isinstance(cell, float):
        return f"{cell:.4g}"
    if isinstance(cell, Mapping) and cell.keys() == {"mean", "spread"}:
        return _cell(cell["mean"])
    if isinstance(cell, Mapping):
        return "<br>".join(f"{html.escape(str(name))}: {_cell(value)}" for name, value in list(cell.items())[:5])
    return html.escape(str(cell))
