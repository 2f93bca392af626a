"""Docstrings, which are plain text with `code` in backticks, as reStructuredText."""

import functools
import importlib
import re
from typing import Any, TypeVar

from docutils import nodes
from docutils.parsers.rst.states import Inliner
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment

import longspan

#: Headings that napoleon knows; what is indented below them are its entries.
_SECTIONS = re.compile(r"(Args|Arguments|Attributes|Raises|Returns|Yields|Example|Examples|Note):$")
_ENTRY = re.compile(r"    (?! )[\w*, ]+?(\([^)]*\))?: ")
#: Paragraphs of a mixer's docstring that begin with what they say.
_LABEL = re.compile(r"(Order of computation|Cost|Source|Deviations|Compile): ")
_NAME = re.compile(r"[A-Za-z_][\w.]*(\(\))?$")


def escaped(line: str) -> str:
    """Return a line in which nothing outside of backticks is markup."""
    parts = line.split("`")
    if len(parts) % 2 == 0:
        return re.sub(r"([\\*|`_])", r"\\\1", line)
    return "`".join(part if i % 2 else re.sub(r"([\\*|_])", r"\\\1", part) for i, part in enumerate(parts))


def rewritten(lines: list[str]) -> list[str]:
    """Return a docstring as reStructuredText with sections that napoleon reads."""
    found: list[str] = []
    i = 0
    while i < len(lines):
        line = lines[i]
        if _SECTIONS.match(line):
            # Its entries: everything indented.
            found += ["", line]
            i += 1
            while i < len(lines) and (not lines[i].strip() or lines[i].startswith(" ")):
                own = lines[i]
                entry = _ENTRY.match(own)
                start = entry.end() if entry else 0
                found.append(own[:start] + escaped(own[start:]))
                i += 1
            found.append("")
        elif _LABEL.match(line) or line.startswith("- "):
            # One paragraph, its further lines indented or not.
            whole = [line]
            i += 1
            while i < len(lines) and lines[i].strip() and not _LABEL.match(lines[i]) and not lines[i].startswith("- "):
                whole.append(lines[i].strip())
                i += 1
            text = " ".join(whole)
            if line.startswith("- "):
                found += ["", f"- {escaped(text[2:])}", ""]
            else:
                label, _, said = text.partition(": ")
                found += ["", f"**{label}.** {escaped(said)}", ""]
        elif line.rstrip().endswith(":") and i + 1 < len(lines) and _starts_block(lines[i + 1 : i + 3]):
            # What is indented below a colon is a formula or code.
            i += 1
            block = []
            while i < len(lines) and (not lines[i].strip() or lines[i].startswith("  ")):
                block.append(lines[i])
                i += 1
            found += [escaped(line), "", ".. code-block:: none", "", *(f"   {own}" for own in block), ""]
        else:
            found.append(escaped(line))
            i += 1
    return found


def _starts_block(following: list[str]) -> bool:
    first = next((line for line in following if line.strip()), "")
    return first.startswith("    ")


def _process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if "longspan" in (getattr(obj, "__module__", None) or name):
        lines[:] = rewritten(lines)


def _signature(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str | None, returned: str | None
) -> tuple[str | None, str | None] | None:
    if what in ("class", "exception") and signature and ("**kwargs" in signature or len(signature) > 400):
        # Of transformers' classes, or of dozens of settings, which the page lists below.
        return "(...)", None
    return None


def name_role(
    role: str, rawtext: str, text: str, lineno: int, inliner: Inliner, options: Any = None, content: Any = ()
) -> tuple[list[nodes.Node], list[nodes.system_message]]:
    """Return code, linked if it is a name that the reference has."""
    code = nodes.literal(rawtext, text, classes=["xref", "py"])
    env: BuildEnvironment = inliner.document.settings.env
    if not _NAME.match(text):
        return [nodes.literal(rawtext, text)], []
    reference = addnodes.pending_xref(
        rawtext, code, refdomain="py", reftype="obj", reftarget=text.removesuffix("()"), refexplicit=False, soft=True
    )
    reference["py:module"] = env.ref_context.get("py:module")
    reference["py:class"] = env.ref_context.get("py:class")
    reference["refdoc"] = env.docname
    return [reference], []


def _object(target: str) -> Any:
    """Return what a dotted path names, None if it names nothing."""
    module, _, name = target.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


@functools.cache
def _public() -> dict[str, str]:
    """Return the public names of longspan by where they are defined."""
    found = ((name, getattr(longspan, name)) for name in longspan.__all__)
    return {f"{one.__module__}.{one.__qualname__}": f"longspan.{name}" for name, one in found}


def _missing(app: Sphinx, env: BuildEnvironment, node: addnodes.pending_xref, content: nodes.Node) -> Any:
    """Leave names unlinked that need no page: those of other packages, and code that only looks like a name."""
    if node.get("refdomain") != "py":
        return None
    target = node.get("reftarget", "")
    if target in _public():
        py, page = env.domains.python_domain, node["refdoc"]
        return py.resolve_xref(env, page, app.builder, "obj", _public()[target], node, content)
    private = re.search(r"(^|\.)_", target) is not None
    if node.get("soft") or private or not target.startswith("longspan"):
        return content
    return content if isinstance(_object(target), TypeVar) else None


def _skip(app: Sphinx, what: str, name: str, obj: Any, skip: bool, options: Any) -> bool | None:
    """Show the arguments of every `forward`, and leave out the methods that scikit-learn adds."""
    if name == "forward" and getattr(obj, "__module__", "").startswith("longspan"):
        return False
    return True if re.fullmatch(r"set_\w+_request", name) else None


def setup(app: Sphinx) -> dict[str, bool]:
    app.connect("autodoc-process-docstring", _process, priority=400)
    app.connect("autodoc-process-signature", _signature)
    app.connect("autodoc-skip-member", _skip)
    app.connect("missing-reference", _missing)
    app.add_role("name", name_role)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
