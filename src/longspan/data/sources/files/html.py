"""The text of an HTML page: `html_text`."""

import re
from typing import Any

from longspan.machine.imports import require

SUFFIXES = frozenset((".html", ".htm", ".xhtml"))
"""Suffixes of pages whose text is read instead of their markup."""

_PART = 1 << 16
_HIDDEN = frozenset(("head", "script", "style", "template", "noscript", "svg", "math", "iframe", "object", "select"))
# fmt: off
_INLINE = frozenset((
    "a", "abbr", "acronym", "b", "bdi", "bdo", "big", "cite", "code", "data", "del", "dfn", "em", "font", "i", "ins",
    "kbd", "label", "mark", "nobr", "q", "s", "samp", "small", "span", "strike", "strong", "sub", "sup", "time", "tt",
    "u", "var", "wbr",
))
# fmt: on
_CELLS = ("td", "th")
_KEPT = ("pre", "textarea")
_SPACE = re.compile(r"[ \t\n\r\f]+")


def html_text(markup: str, name: str) -> str:
    """Return the text of an HTML page as a browser shows it, one line per block.

    Scripts, styles and the head are left out, white space is collapsed except in `pre`, and the cells of a table are
    separated by tabs. The page is read in one pass, without building a tree, in time that grows linearly whatever is
    nested in whatever.

    Args:
        markup: The page.
        name: Its name in messages.

    Raises:
        UserError: lxml is not installed.
    """
    require("lxml", f"reading the text of {name}", instead="rename the file to .txt to read its markup")
    from lxml.etree import HTMLParser, ParserError, XMLSyntaxError

    page = _Page()
    parser = HTMLParser(target=page, no_network=True)
    try:
        # An empty page is not one to lxml.
        for start in range(0, len(markup), _PART):
            parser.feed(markup[start : start + _PART])
        if markup.strip():
            parser.close()
    except (ParserError, XMLSyntaxError):
        # Nothing but comments, say: what was found before is all there is.
        pass
    return page.text()


class _Page:
    """Collects the text of a page, as a target of lxml's parser."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self._last = "\n"
        self._hidden = self._kept = 0

    def start(self, tag: str, attributes: Any) -> None:
        self._hidden += tag in _HIDDEN
        self._kept += tag in _KEPT
        if tag in _CELLS:
            self._add("" if self._last == "\n" else "\t")
        elif tag not in _INLINE:
            self._add("\n")

    def end(self, tag: str) -> None:
        self._hidden -= tag in _HIDDEN
        self._kept -= tag in _KEPT
        if tag not in _INLINE and tag not in _CELLS:
            self._add("\n")

    def data(self, text: str) -> None:
        if self._hidden:
            return
        if not self._kept:
            text = _SPACE.sub(" ", text)
            text = text.removeprefix(" ") if self._last.isspace() else text
        self._add(text)

    def comment(self, text: str) -> None:
        """Leave it out."""

    def close(self) -> None:
        """Nothing is built."""

    def text(self) -> str:
        """Return the lines with text, without white space at their ends."""
        return "\n".join(filter(None, (line.rstrip() for line in "".join(self._parts).splitlines())))

    def _add(self, text: str) -> None:
        if text:
            self._parts.append(text)
            self._last = text[-1]
