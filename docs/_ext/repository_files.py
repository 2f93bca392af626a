"""Pages for files of the repository, so that links to them from the documentation lead somewhere on the site.

A page whose only line is `<!-- file: ../CHANGELOG.md -->` has the text of that file. Any other file that a page links
to, such as a test or a benchmark, gets a page with its source.
"""

import re
from pathlib import Path

from sphinx.application import Sphinx

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
GENERATED = DOCS / "reference" / "generated" / "files"
_STUB = re.compile(r"<!-- file: (\S+) -->\s*")
_LINK = re.compile(r"(!?\[[^\]]*\]\()([^)#\s:]+)(#[^)\s]*)?\)")
_LANGUAGES = {".py": "python", ".toml": "toml", ".md": "markdown"}


def _stubs() -> dict[Path, Path]:
    """Files of the repository that have a page in docs/, each with that page."""
    pages = [*DOCS.glob("*.md"), *DOCS.glob("reference/*.md")]
    found = ((page, _STUB.fullmatch(page.read_text(encoding="utf-8"))) for page in pages)
    return {(DOCS / stub[1]).resolve(): page for page, stub in found if stub}


def _page_of(file: Path, stubs: dict[Path, Path]) -> Path | None:
    """Page of a file of the repository outside of docs/; None if there is no such file."""
    if file in stubs:
        return stubs[file]
    if not file.is_file() or not file.is_relative_to(ROOT) or file.is_relative_to(DOCS):
        return None
    name = str(file.relative_to(ROOT))
    page = GENERATED / f"{name.replace('/', '-')}.md"
    if not page.exists():
        page.parent.mkdir(parents=True, exist_ok=True)
        fence = f"```{{literalinclude}} {'../' * 4}{name}\n:language: {_LANGUAGES.get(file.suffix, 'none')}\n```\n"
        page.write_text(f"---\norphan: true\n---\n\n# {name}\n\n{fence}", encoding="utf-8")
    return page


def _up(target: Path, start: Path) -> str:
    """Path of `target` relative to the folder `start`."""
    shared = next(parent for parent in (start, *start.parents) if target.is_relative_to(parent))
    return "../" * len(start.relative_to(shared).parts) + str(target.relative_to(shared))


def _relinked(text: str, written: Path, shown: Path, stubs: dict[Path, Path]) -> str:
    """Text of the file `written` with its links rewritten for the page `shown`."""

    def link(match: re.Match[str]) -> str:
        opening, target, anchor = match[1], match[2], match[3] or ""
        file = (written.parent / target).resolve()
        page = _page_of(file, stubs) or (file if file.is_relative_to(DOCS) and file.exists() else None)
        return f"{opening}{_up(page, shown.parent)}{anchor})" if page else match[0]

    return _LINK.sub(link, text)


def _read(app: Sphinx, docname: str, source: list[str]) -> None:
    shown = Path(app.env.doc2path(docname))
    if shown.suffix != ".md":
        return
    stub = _STUB.fullmatch(source[0])
    written = (DOCS / stub[1]).resolve() if stub else shown
    text = written.read_text(encoding="utf-8") if stub else source[0]
    if stub:
        app.env.note_dependency(str(written), docname=docname)
    if written.suffix not in (".md", ".py"):
        title = {"LICENSE": "Licence", "CITATION.cff": "Citation"}.get(written.name, written.name)
        text = f"# {title}\n\n```text\n{text}\n```\n"
    source[0] = _relinked(text, written, shown, _stubs())


def _prepare(app: Sphinx) -> None:
    """Write the pages of all linked files before Sphinx looks for pages."""
    stubs = _stubs()
    written = {page: file for file, page in stubs.items()}
    for page in (page for folder in (".", "guides", "reference", "results") for page in DOCS.glob(f"{folder}/*.md")):
        file = written.get(page, page)
        if file.suffix == ".md":
            _relinked(file.read_text(encoding="utf-8"), file, page, stubs)


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("builder-inited", _prepare)
    app.connect("source-read", _read)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
