"""The text of documents of other programs, in a process of its own: `python -m longspan.data.sources.files.readers`.

`longspan.data.sources.files.documents` starts it, sends it file after file and replaces it when it dies, so that a
hostile file costs limited time and memory. The content of a file decides what it is, not its name. Formats made of XML
and mail need no package; XML is read as a stream of events. Nothing is executed or fetched.
"""

import contextlib
import io
import os
import re
import signal
import sys
import zipfile
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from email.message import EmailMessage
from posixpath import dirname, join, normpath
from typing import Any, ClassVar, cast
from urllib.parse import unquote

from longspan.data.sources.files.decoding import NotText, decode
from longspan.data.sources.files.documents import (
    ANSWER,
    COMPOUND,
    INSTALL,
    LARGEST_PARTS,
    LARGEST_TEXT,
    MEMORY,
    PACKED,
    PDF,
    REQUEST,
    RTF,
    SECONDS,
)
from longspan.data.sources.files.encodings import AUTO
from longspan.data.sources.files.html import html_text
from longspan.data.sources.files.xml_events import xml_events
from longspan.errors import UserError

_CHUNK = 1 << 16
_SPACE = re.compile(r"[ \t\n\r]+")
_FORBIDDEN = ("socket.", "subprocess.", "os.system", "os.exec", "os.fork", "os.posix_spawn", "os.startfile")


def text_of(content: bytes, suffix: str) -> str:
    """Text of a document.

    Args:
        content: The file.
        suffix: The suffix of its name, in lower case; only mail is recognised by it.

    Raises:
        NotText: It has a password, no text layer, is too large, or of an unknown kind. Damaged files raise others.
    """
    if content.startswith(PACKED):
        return _packed(content)
    if content.startswith(COMPOUND):
        return _compound(content)
    if content.startswith(RTF):
        from striprtf.striprtf import rtf_to_text

        return cast(str, rtf_to_text(content.decode("cp1252", "replace"), errors="replace"))
    return _mail(content) if suffix == ".eml" and not content.startswith(PDF) else _pdf(content)


# ZIP: office documents and books


class _Parts:
    """The parts of a packed document, of which a limited number of bytes is read."""

    def __init__(self, content: bytes) -> None:
        self._archive = zipfile.ZipFile(io.BytesIO(content))
        self.content, self.names, self._left = content, self._archive.namelist(), LARGEST_PARTS

    def pieces(self, name: str) -> Iterator[bytes]:
        """Yield a part in pieces."""
        with self._archive.open(name) as part:
            while piece := part.read(_CHUNK):
                self._left -= len(piece)
                if self._left < 0:
                    raise NotText(None, f"too large (more than {LARGEST_PARTS:,} bytes unpacked)")
                yield piece

    def read(self, name: str) -> bytes:
        """The bytes of a part; none if there is no such part."""
        return b"".join(self.pieces(name)) if name in self.names else b""

    def matching(self, pattern: str) -> list[str]:
        """Names of the parts that match, in the order of the numbers in them."""
        found = [name for name in self.names if re.fullmatch(pattern, name)]
        return sorted(found, key=lambda name: [int(number) for number in re.findall(r"\d+", name)])


def _packed(content: bytes) -> str:
    parts = _Parts(content)
    for pattern, read in _PACKED.items():
        if parts.matching(pattern):
            return read(parts)
    raise NotText(None, "not text (a ZIP archive, or a document of an unknown kind)")


class _XmlText:
    """Collects the text of XML parts of Office Open XML and OpenDocument, a line per paragraph or row of a table.

    Args:
        text: Elements whose characters are text.
    """

    SKIPPED: ClassVar = frozenset((
        "pPr", "rPr", "sectPr", "tblPr", "tcPr", "moveFrom", "Fallback", "tracked-changes", "annotation",
    ))  # fmt: skip
    SIGNS: ClassVar = {"tab": "\t", "br": "\n", "cr": "\n", "line-break": "\n", "noBreakHyphen": "-"}
    #: What an element ends with, and the end of the last element in it that this replaces.
    ENDS: ClassVar = {
        **dict.fromkeys(("p", "h"), ("\n", "")),
        **dict.fromkeys(("tc", "table-cell"), ("\t", "\n")),
        **dict.fromkeys(("tr", "table-row"), ("\n", "\t")),
    }

    def __init__(self, *text: str) -> None:
        self._text, self._found = text, [""]
        self._inside = self._skipped = 0

    def add(self, pieces: Iterable[bytes]) -> None:
        """Read a part."""
        for event, tag, value in _xml(pieces):
            if event == "text" and self._inside and not self._skipped:
                self._found.append(value if "t" in self._text else _SPACE.sub(" ", value))
            if event not in ("start", "end"):
                continue
            change = 1 if event == "start" else -1
            if tag in self.SKIPPED:
                self._skipped += change
            if self._skipped:
                continue
            if tag in self._text:
                self._inside += change
            if event == "start":
                spaces = value.get("text:c", "1") if tag == "s" else "0"
                self._found.append(self.SIGNS.get(tag) or " " * min(int(spaces), 100))
            elif tag in self.ENDS:
                end, replaced = self.ENDS[tag]
                if self._found[-1] == replaced:
                    self._found.pop()
                self._found.append(end)
        self._found.append("\n")

    def text(self) -> str:
        """The lines that have text."""
        return _lines("".join(self._found))


def _xml(pieces: Iterable[bytes]) -> Iterator[tuple[str, str, Any]]:
    def refuse(*declared: Any) -> None:
        raise NotText(None, "damaged (it declares XML entities)")

    return xml_events(pieces, refuse)


def _lines(text: str) -> str:
    return "\n".join(filter(None, (line.rstrip() for line in text.splitlines())))


def _word(parts: _Parts) -> str:
    # Headers of a first page often repeat those of the others.
    found: dict[str, None] = {}
    for kind in (r"header\d*", r"document\d*", "footnotes", "endnotes", r"footer\d*"):
        for name in parts.matching(rf"word/{kind}\.xml"):
            part = _XmlText("t")
            part.add(parts.pieces(name))
            found[part.text()] = None
    return _lines("\n".join(found))


def _slides(parts: _Parts) -> str:
    text = _XmlText("t")
    for kind in ("slides/slide", "diagrams/data", "notesSlides/notesSlide"):
        for name in parts.matching(rf"ppt/{kind}\d+\.xml"):
            text.add(parts.pieces(name))
    return text.text()


def _open_document(parts: _Parts) -> str:
    if b"encryption-data" in parts.read("META-INF/manifest.xml"):
        raise NotText(None, "password")
    if b"spreadsheet" in parts.read("mimetype"):
        return _cells(parts.content)
    text = _XmlText("p", "h")
    text.add(parts.pieces("content.xml"))
    return text.text()


def _book(parts: _Parts) -> str:
    """Chapters of an EPUB in their order."""
    root = next(
        value["full-path"] for _, tag, value in _xml(parts.pieces("META-INF/container.xml")) if tag == "rootfile"
    )
    found = [(tag, value) for event, tag, value in _xml(parts.pieces(root)) if event == "start"]
    items = {value["id"]: unquote(value["href"]) for tag, value in found if tag == "item"}
    chapters = [items[value["idref"]] for tag, value in found if tag == "itemref" and value["idref"] in items]
    locked = parts.read("META-INF/encryption.xml").decode("utf-8", "replace")
    if any(chapter in locked for chapter in chapters):
        raise NotText(None, "password (copy protection)")
    pages = (parts.read(normpath(join(dirname(root), chapter))) for chapter in chapters)
    return "\n".join(html_text(_likely_text(page), ".epub files") for page in pages)


def _cells(content: bytes) -> str:
    import python_calamine

    lines: list[str] = []
    try:
        book = python_calamine.load_workbook(io.BytesIO(content))
        for name in book.sheet_names:
            lines.append(name)
            lines += ("\t".join(map(_cell, row)) for row in book.get_sheet_by_name(name).iter_rows())
    except python_calamine.PasswordError:
        raise NotText(None, "password") from None
    return _lines("\n".join(lines))


def _cell(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).removesuffix(" 00:00:00") if isinstance(value, datetime) else str(value)


_PACKED: dict[str, Callable[[_Parts], str]] = {
    r"word/document\d*\.xml": _word,
    r"ppt/presentation\.xml": _slides,
    r"xl/workbook\.(xml|bin)": lambda parts: _cells(parts.content),
    r"META-INF/container\.xml": _book,
    r"META-INF/manifest\.xml": _open_document,
}
"""Kinds of packed documents by a part that they have."""


# Compound files: messages of Outlook, and what Office wrote before 2007


def _compound(content: bytes) -> str:
    import olefile

    file = olefile.OleFileIO(content)
    if file.exists("EncryptedPackage"):
        raise NotText(None, "password")
    if file.exists("__properties_version1.0"):
        return _message(file)
    if file.exists("Workbook") or file.exists("Book"):
        return _cells(content)
    raise NotText(None, "not text (a file of Word or PowerPoint before 2007; save it as .docx or .pptx)")


def _message(file: Any) -> str:
    """Text of a message of Outlook, [MS-OXMSG], in the form of mail."""
    properties = file.openstream("__properties_version1.0").read()[32:]
    fixed = {properties[at : at + 4]: properties[at + 8 : at + 16] for at in range(0, len(properties), 16)}
    page = int.from_bytes(fixed.get(b"\x03\x00\xfd\x3f", b"")[:4], "little") or 1252

    def value(tag: str, folder: str = "") -> str:
        for kind, encoding in (("001F", "utf-16-le"), ("001E", f"cp{page}"), ("0102", "")):
            place = f"{folder}__substg1.0_{tag}{kind}"
            if file.exists(place):
                found: bytes = file.openstream(place).read()
                return found.decode(encoding, "replace").rstrip("\0") if encoding else _likely_text(found)
        return ""

    sent = int.from_bytes(fixed.get(b"\x40\x00\x39\x00", b""), "little")
    # Ticks of 100 nanoseconds since 1601.
    day = datetime(1601, 1, 1, tzinfo=UTC) + timedelta(microseconds=sent // 10)
    headers = {
        "From": f"{value('0C1A')} <{value('5D01') or value('0C1F')}>",
        "To": value("0E04"),
        "Cc": value("0E03"),
        "Date": f"{day:%a, %d %b %Y %H:%M:%S %z}" if sent else "",
        "Subject": value("0037"),
    }
    places = sorted({entry[0] for entry in file.listdir() if entry[0].startswith("__attach")})
    attachments = [value("3707", f"{place}/") or value("3704", f"{place}/") for place in places]
    body = value("1000") or html_text(value("1013"), ".msg files")
    if not body.strip() and file.exists("__substg1.0_10090102"):
        raise NotText(None, "a message that is rich text alone")
    return _letter(headers, body, attachments)


# Mail


def _mail(content: bytes) -> str:
    message = message_from_bytes(content, policy=policy.default)
    headers = {name: _header(message, name) for name in ("From", "To", "Cc", "Date", "Subject")}
    part = message.get_body(("plain", "html"))
    body = _body_text(part) if part is not None else ""
    if part is not None and part.get_content_type() == "text/html":
        body = html_text(body, ".eml files")
    attached = [part.get_filename() or "" for part in message.iter_attachments()]
    return _letter(headers, body, attached)


def _letter(headers: dict[str, str], body: str, attachments: list[str]) -> str:
    lines = [f"{name}: {' '.join(value.split())}" for name, value in headers.items() if value.strip()]
    named = f"Attachments: {', '.join(filter(None, attachments))}" if any(attachments) else ""
    return "\n\n".join(filter(None, ("\n".join(lines), body.replace("\r\n", "\n").strip(), named)))


def _header(message: EmailMessage, name: str) -> str:
    raw = next((str(value) for key, value in message.raw_items() if key.lower() == name.lower()), "")
    if not raw.isascii():
        # Characters as they are, against the standard.
        return _likely_text(raw.encode("utf-8", "surrogateescape"))
    try:
        return str(message[name] or "")
    except Exception:
        # Headers that are wrong fail in many ways.
        return raw


def _body_text(part: Any) -> str:
    content: bytes = part.get_payload(decode=True) or b""
    try:
        return content.decode(part.get_content_charset("utf-8"))
    except (LookupError, UnicodeError):
        # The encoding that the mail names is not known, or is not that of its text.
        return _likely_text(content)


def _likely_text(content: bytes) -> str:
    """Text of a part in an encoding that is not known, of which a few wrong bytes may be lost."""
    try:
        return decode(content, AUTO)[0]
    except NotText:
        return content.decode("utf-8", "replace")


# PDF


def _pdf(content: bytes) -> str:
    import pypdfium2

    try:
        document = pypdfium2.PdfDocument(content)
    except pypdfium2.PdfiumError as error:
        if error.err_code == pypdfium2.raw.FPDF_ERR_PASSWORD:
            raise NotText(None, "password") from None
        raise
    pages, size = [], 0
    for number in range(len(document)):
        page = document[number]
        text = page.get_textpage().get_text_range()
        page.close()
        # A hyphen at the end of a line.
        pages.append(text.replace("\ufffe\r\n", "").replace("\ufffe", ""))
        size += len(text)
        if size > LARGEST_TEXT:
            raise NotText(None, f"too large (more than {LARGEST_TEXT:,} characters)")
    found = _lines("\n".join(pages))
    if not found:
        raise NotText(None, "scanned PDF without text")
    return found


# The process


def _answer(content: bytes, suffix: str) -> tuple[bool, str]:
    try:
        text = text_of(content, suffix)
    except NotText as error:
        return False, error.problem
    except (ModuleNotFoundError, UserError):
        return False, f"not read ({INSTALL} reads {suffix or 'such'} files)"
    except MemoryError:
        return False, f"too large (more than {MEMORY:,} bytes of memory)"
    except BaseException as error:
        # Whatever a reader stumbles over, those in other languages included.
        if "encrypted" in str(error) or "password" in str(error):
            return False, "password"
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        return False, f"damaged ({reason[:100]})"
    if len(text) > LARGEST_TEXT:
        return False, f"too large (more than {LARGEST_TEXT:,} characters)"
    return True, text


def _limit(size: int) -> None:
    """Limit the memory and the processor time of the next file, where the system can."""
    with contextlib.suppress(ImportError, OSError, ValueError):
        import resource

        used = resource.getrusage(resource.RUSAGE_SELF)
        most = int(used.ru_utime + used.ru_stime) + SECONDS + 1
        resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY + 3 * size, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _forbid(event: str, arguments: Any) -> None:
    if event.startswith(_FORBIDDEN):
        raise PermissionError("documents execute and fetch nothing")


def main() -> None:
    """Answer requests on standard input until it ends."""
    # An interruption is for the process that asks.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    # What readers print is no answer.
    silence = os.open(os.devnull, os.O_WRONLY)
    os.dup2(silence, 1)
    os.dup2(silence, 2)
    sys.addaudithook(_forbid)
    while header := requests.read(REQUEST.size):
        size, length = REQUEST.unpack(header)
        _limit(size)
        suffix = requests.read(length).decode("utf-8", "replace")
        good, text = _answer(requests.read(size), suffix)
        encoded = text.encode("utf-8", "replace")
        answers.write(ANSWER.pack(len(encoded), good) + encoded)
        answers.flush()


if __name__ == "__main__":
    main()
