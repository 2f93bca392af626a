"""Check the links of the built site, offline: `python docs/links.py [docs/_build/html]`.

Reports links to pages, files and anchors that do not exist, and external links that are not well-formed. Ends with exit
code 1 if there is one. External links are not opened.
"""

import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

SITE = Path(__file__).parent / "_build" / "html"
#: Attributes that hold a link.
LINKS = {"href", "src", "poster", "data"}
#: An external link: a host with a dot, and no space, quote or bracket that is left over from markup.
EXTERNAL = re.compile(r"(https?://[\w-]+(\.[\w-]+)+(:\d+)?([/?#][^\s<>\"'`{}\\]*)?|mailto:[^\s@]+@[\w.-]+)$")
LOCAL = re.compile(r"https?://(localhost|127\.0\.0\.1|\[::1\])\b")


class Page(HTMLParser):
    """The links and the anchors of a page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors = {"", "top"}
        self.links: set[str] = set()
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.anchors.add(value or "")
            elif name in LINKS:
                self.links.add(value or "")
            elif name == "srcset":
                self.links |= {part.split()[0] for part in (value or "").split(",") if part.strip()}


def external_fault(link: str) -> str | None:
    """Return what is wrong with an external link, None if nothing is."""
    if LOCAL.match(link):
        return "external link to this machine"
    left_over = link.endswith((".", ",", ";", ":")) or link.count("(") != link.count(")")
    return "malformed external link" if left_over or not EXTERNAL.match(link) else None


def faults(site: Path) -> list[tuple[str, str, str]]:
    """Return the faults of a site: the page, the link and what is wrong."""
    site = site.resolve()
    # The theme has a template among its static files.
    pages = {path: Page(path) for path in sorted(site.rglob("*.html")) if "_static" not in path.parts}
    found = []
    for path, page in pages.items():
        for link in sorted(page.links):
            parts = urlsplit(link)
            fault = None
            if parts.scheme in ("data", "javascript"):
                continue
            if parts.scheme or link.startswith("//"):
                fault = external_fault(link)
            else:
                target = path
                if parts.path:
                    start = site if parts.path.startswith("/") else path.parent
                    target = (start / unquote(parts.path).lstrip("/")).resolve()
                if target.is_dir():
                    target /= "index.html"
                if not target.is_relative_to(site):
                    fault = "leads out of the site"
                elif not target.exists():
                    fault = "no such page or file"
                elif target in pages and unquote(parts.fragment) not in pages[target].anchors:
                    fault = "no such anchor"
            if fault:
                found.append((str(path.relative_to(site)), link, fault))
    return found


def main() -> int:
    site = Path(sys.argv[1]) if len(sys.argv) > 1 else SITE
    if not (site / "index.html").exists():
        sys.exit(f"expected a built site in {site}, found none: run `make docs`")
    found = faults(site)
    for page, link, fault in found:
        print(f"{page}: {link}: {fault}")
    print(f"{len(found)} broken links" if found else "no broken link", file=sys.stderr)
    return int(bool(found))


if __name__ == "__main__":
    sys.exit(main())
