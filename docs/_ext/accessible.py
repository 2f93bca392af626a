"""What the theme and the gallery leave out, written into the pages when they are built: names for screen readers."""

import re
from pathlib import Path

from sphinx.application import Sphinx

#: A link of the navigation, and the arrow that unfolds the pages below it.
_ARROW = re.compile(r"(<a [^>]*>((?:(?!</a>).)*)</a><details[^>]*><summary)>")
#: The search button, whose name is the text in it; site.css keeps it for screen readers where the button is an icon.
_SEARCH = re.compile(r'(<button [^>]*class="[^"]*search-button-field[^>]*?) title="Search" aria-label="Search"')
#: A parameter or an exception, and the hyphens before its description.
_HYPHENS = re.compile(r"(<(?:li|dd[^>]*)><p>(?:(?!</p>| -- ).)*) -- ", re.DOTALL)
#: Titles in the gallery, which are the text of the link, too.
_TITLE = 'class="sphx-glr-thumbnail-title"'


def _named(text: str) -> str:
    """Return a page with names."""
    text = _ARROW.sub(lambda link: f'{link[1]} aria-label="{re.sub("<[^>]*>", "", link[2])}: pages">', text)
    text = _HYPHENS.sub(r"\1: ", _SEARCH.sub(r"\1", text))
    return text.replace(f"{_TITLE}>", f'{_TITLE} aria-hidden="true">')


def _finish(app: Sphinx, error: Exception | None) -> None:
    if error or app.builder.format != "html":
        return
    for page in Path(app.outdir).rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        if (named := _named(text)) != text:
            page.write_text(named, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("build-finished", _finish)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
