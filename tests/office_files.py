"""Documents of office programs, written by the libraries that write them, or by hand where there is none."""

import io
import struct
import zipfile
from collections.abc import Callable
from email.message import EmailMessage
from pathlib import Path

import docx
import fpdf
import openpyxl
import pptx

RTF = r"{\rtf1\ansi\ansicpg1252{\fonttbl{\f0 Times;}}{\info{\author Hidden}}\f0 %s\par}"
ODF = "urn:oasis:names:tc:opendocument:xmlns"
SECTOR = 512


def zipped(*members: tuple[str, str | bytes], compression: int = zipfile.ZIP_DEFLATED) -> bytes:
    """A ZIP archive."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", compression) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return file.getvalue()


def saved(save: Callable[[io.BytesIO], object]) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()


def word(text: str) -> bytes:
    document = docx.Document()
    for line in text.splitlines():
        document.add_paragraph(line)
    return saved(document.save)


def slides(text: str) -> bytes:
    shown = pptx.Presentation()
    for line in text.splitlines():
        shown.slides.add_slide(shown.slide_layouts[1]).placeholders[1].text_frame.text = line
    return saved(shown.save)


def sheet(text: str) -> bytes:
    book = openpyxl.Workbook()
    assert book.active is not None
    for line in text.splitlines():
        book.active.append([line, 12.5, 3])
    return saved(book.save)


def pdf(text: str, pages: int = 1, password: str = "") -> bytes:
    document = fpdf.FPDF()
    if password:
        document.set_encryption("owner", password)
    for _ in range(pages):
        document.add_page()
        document.set_font("helvetica", size=11)
        if text:
            document.multi_cell(0, 6, text)
    return bytes(document.output())


def open_document(text: str, kind: str = "text") -> bytes:
    paragraphs = "".join(f"<text:p>{line}</text:p>" for line in text.splitlines())
    content = (
        f'<office:document-content xmlns:office="{ODF}:office:1.0" xmlns:text="{ODF}:text:1.0"><office:body>'
        f"<office:text>{paragraphs}</office:text></office:body></office:document-content>"
    )
    mimetype = f"application/vnd.oasis.opendocument.{kind}"
    return zipped(("mimetype", mimetype), ("META-INF/manifest.xml", "<manifest/>"), ("content.xml", content))


def book(text: str) -> bytes:
    chapters = text.splitlines()
    items = "".join(f'<item id="c{number}" href="part%20{number}.xhtml"/>' for number, _ in enumerate(chapters))
    spine = "".join(f'<itemref idref="c{number}"/>' for number, _ in enumerate(chapters))
    return zipped(
        ("mimetype", "application/epub+zip"),
        ("META-INF/container.xml", '<container><rootfiles><rootfile full-path="O/b.opf"/></rootfiles></container>'),
        ("O/b.opf", f"<package><manifest>{items}</manifest><spine>{spine}</spine></package>"),
        *((f"O/part {n}.xhtml", f"<html><head><title>x</title></head><p>{c}") for n, c in enumerate(chapters)),
    )


def rich_text(text: str) -> bytes:
    escaped = "".join(sign if sign.isascii() else f"\\u{ord(sign)}?" for sign in text)
    return (RTF % escaped.replace("\n", "\\par\n")).encode("ascii")


def mail(text: str) -> bytes:
    message = EmailMessage()
    message["From"], message["To"], message["Subject"] = "Ann <ann@example.org>", "bob@example.org", "A letter"
    message.set_content(text)
    message.add_attachment(b"%PDF", maintype="application", subtype="pdf", filename="plan.pdf")
    return bytes(message)


def outlook(text: str) -> bytes:
    """A message of Outlook with an attachment."""

    def words(value: str) -> bytes:
        return value.encode("utf-16-le")

    sent = struct.pack("<IIQ", 0x00390040, 6, 133_600_000_000_000_000)
    return compound(
        {
            "__properties_version1.0": bytes(32) + sent,
            "__substg1.0_0037001F": words("A letter"),
            "__substg1.0_0C1A001F": words("Ann"),
            "__substg1.0_0C1F001F": words("ann@example.org"),
            "__substg1.0_0E04001F": words("bob@example.org"),
            "__substg1.0_1000001F": words(text.replace("\n", "\r\n")),
            "__attach_version1.0_#00000000": {"__substg1.0_3707001F": words("plan.pdf")},
        }
    )


def compound(content: dict[str, bytes | dict[str, bytes]]) -> bytes:
    """A compound file [MS-CFB]; each stream is padded so that it needs no sectors of its own kind."""
    sectors: list[bytes] = []
    table: list[int] = []

    def store(stream: bytes) -> int:
        first, number = len(sectors), -(-len(stream) // SECTOR)
        sectors.extend(stream[at * SECTOR :][:SECTOR].ljust(SECTOR, b"\0") for at in range(number))
        table.extend([*range(first + 1, first + number), 0xFFFFFFFE])
        return first

    entries: list[list[int | str]] = [["Root Entry", 5, 0xFFFFFFFF, 0xFFFFFFFE, 0]]

    def add(members: dict[str, bytes | dict[str, bytes]], parent: int) -> None:
        before: int | None = None
        for name, value in members.items():
            number = len(entries)
            size = 0 if isinstance(value, dict) else max(4096, len(value))
            first = 0xFFFFFFFE if isinstance(value, dict) else store(value.ljust(size, b"\0"))
            entries.append([name, 1 if isinstance(value, dict) else 2, 0xFFFFFFFF, first, size, 0xFFFFFFFF])
            if before is None:
                entries[parent][2] = number
            else:
                entries[before][5] = number
            before = number
            if isinstance(value, dict):
                add({**value}, number)

    add(content, 0)
    directory = b""
    for name, kind, child, first, size, *right in entries:
        encoded = str(name).encode("utf-16-le")
        directory += struct.pack(
            "<64sHBBIII16sIQQIII",
            *(encoded, len(encoded) + 2, kind, 1, 0xFFFFFFFF, *(right or [0xFFFFFFFF]), child, bytes(16)),
            *(0, 0, 0, first, size, 0),
        )
    start = store(directory)
    place = len(sectors)
    table.append(0xFFFFFFFD)
    sectors.append(struct.pack(f"<{len(table)}I", *table).ljust(SECTOR, b"\xff"))
    assert len(table) <= SECTOR // 4
    header = struct.pack(
        "<8s16sHHHHH6sIIIIIIIIII",
        *(b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", bytes(16), 62, 3, 0xFFFE, 9, 6, bytes(6), 0, 1, start, 0, 4096),
        *(0xFFFFFFFE, 0, 0xFFFFFFFE, 0, place),
    )
    return header.ljust(SECTOR, b"\xff") + b"".join(sectors)


KINDS: dict[str, Callable[[str], bytes]] = {
    ".docx": word,
    ".pptx": slides,
    ".xlsx": sheet,
    ".pdf": pdf,
    ".odt": open_document,
    ".odp": lambda text: open_document(text, "presentation"),
    ".epub": book,
    ".rtf": rich_text,
    ".eml": mail,
    ".msg": outlook,
}
"""Writers of documents with the lines of a text, by their suffix."""


def write_office(folder: Path, texts: dict[str, str]) -> None:
    """Write texts as files of each kind in turn, at their places in a folder, without suffixes."""
    kinds = list(KINDS.items())
    for number, (place, text) in enumerate(texts.items()):
        suffix, content = kinds[number % len(kinds)]
        path = folder / f"{place}{suffix}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content(text))
