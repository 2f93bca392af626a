"""Documents of other programs are read as text, whatever they are called, and hostile ones cost little."""

import io
import json
import os
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import docx
import pandas as pd
import pptx
import pytest
from docx.oxml import parse_xml
from office_files import (
    KINDS,
    RTF,
    compound,
    mail,
    open_document,
    pdf,
    rich_text,
    saved,
    sheet,
    word,
    write_office,
    zipped,
)

import longspan.data.sources.files.documents as documents
from longspan.data.columns.kinds import Label, Text, Words
from longspan.data.config import DataConfig
from longspan.data.sources.files.decoding import NotText
from longspan.data.sources.files.documents import document_text
from longspan.data.sources.formats.schema import Row
from longspan.data.sources.in_memory import rows_of, with_data
from longspan.data.sources.loading import load
from longspan.data.sources.paths import read_paths
from longspan.errors import UserError

COLUMNS = [Text("text", "text_column"), Label("label", "label_column")]
TEXT = COLUMNS[:1]
WORDS = "The café in Zürich sends its bill.\nPlease pay within ten days."


class Data(DataConfig):
    label_column = "label"


def read(path: Path | str, **settings: Any) -> Row:
    (row,) = read_paths([path], TEXT, Data(), **settings)
    return row


def problem(content: bytes, name: str, folder: Path) -> str:
    (folder / name).write_bytes(content)
    return read(folder / name).problem


def lines(row: Row) -> list[str]:
    assert row.problem == ""
    return list(row.values["text"].splitlines())


# Every kind, everywhere


@pytest.mark.parametrize("suffix", KINDS)
def test_every_kind_is_read_everywhere(suffix: str, tmp_path: Path) -> None:
    """By its name, in another case, without one, compressed, on standard input, in memory, in tables and in folders."""
    content = KINDS[suffix](WORDS)
    folder = tmp_path / "in" / "a"
    folder.mkdir(parents=True)
    paths = [folder / f"x{suffix}", folder / f"y{suffix.upper()}", folder / f"z{suffix}.zip"]
    for path in paths[:2]:
        path.write_bytes(content)
    paths[2].write_bytes(zipped((f"z{suffix}", content)))
    (expected,) = {read(path).values["text"] for path in paths}
    for line in WORDS.splitlines():
        assert line in expected
    assert read(paths[0]).extracted_from == suffix
    (tmp_path / "in" / "b").mkdir()
    (tmp_path / "in" / "b" / "t.txt").write_text("plain text")
    texts = [row.values["text"] for row in read_paths([tmp_path / "in"], TEXT, Data())]
    assert texts == [*[expected] * 3, "plain text"]
    labelled = load(Data(path=str(tmp_path / "in"), validation_fraction=0), COLUMNS).splits["train"]
    assert {(row["label"], row["text"]) for row in labelled.to_list()} == {("a", expected), ("b", "plain text")}
    (tmp_path / "t.csv").write_text(f"path,label\nin/a/x{suffix},a\nin/b/t.txt,b\nin/b/gone,b\n")
    rows = list(read_paths([tmp_path / "t.csv"], TEXT, Data(file_column="path")))
    assert [row.values["text"] for row in rows] == [expected, "plain text", None]
    assert rows[2].problem == "no text (expected the path of a file, got 'in/b/gone': No such file or directory)"
    assert [row.values["text"] for row in rows_of([paths[0], folder.parent / "b" / "t.txt"], TEXT, Data())] == [
        expected,
        "plain text",
    ]
    if suffix == ".eml":
        # Nothing but its name tells mail from other texts.
        return
    (tmp_path / "no_suffix").write_bytes(content)
    (tmp_path / "wrong.txt").write_bytes(content)
    assert read(tmp_path / "no_suffix").values == read(tmp_path / "wrong.txt").values == {"text": expected}
    found = read("-", stdin=io.BytesIO(content))
    assert (found.values["text"], found.where) == (expected, "standard input")
    assert [row.values["text"] for row in rows_of([content, b"text"], TEXT, Data())] == [expected, "text"]
    frame = pd.DataFrame({"text": [content, content], "label": ["a", "b"]})
    copied = with_data(Data(validation_fraction=0), COLUMNS, frame)
    assert load(copied, COLUMNS).splits["train"]["text"][:] == [expected] * 2


def test_a_file_of_a_table_is_read_again_when_it_changes(tmp_path: Path) -> None:
    (tmp_path / "a.docx").write_bytes(word("first"))
    (tmp_path / "t.csv").write_text("path,label\na.docx,a\na.docx,b\n")
    frame = pd.DataFrame({"text": [tmp_path / "a.docx"] * 2, "label": ["a", "b"]})
    for text in ("first", "second"):
        (tmp_path / "a.docx").write_bytes(word(text))
        table = Data(path=str(tmp_path / "t.csv"), file_column="path", validation_fraction=0)
        for settings in (table, with_data(Data(validation_fraction=0), COLUMNS, frame)):
            assert set(load(settings, COLUMNS).splits["train"]["text"][:]) == {text}


def test_training_on_files_in_memory_counts_those_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "scan.pdf").write_bytes(pdf(""))
    (tmp_path / "good.docx").write_bytes(word("good"))
    frame = pd.DataFrame({"text": [tmp_path / "good.docx", tmp_path / "scan.pdf", b"bytes"], "label": ["a", "b", "b"]})
    copied = with_data(Data(validation_fraction=0, skip_bad_rows=True), COLUMNS, frame)
    assert load(copied, COLUMNS).splits["train"]["text"][:] == ["good", "bytes"]
    told = capsys.readouterr().err
    assert "not read: 1 of 3 files in the DataFrame (1 scanned PDF without text)" in told
    rows = list(rows_of(frame, TEXT, Data()))
    assert [row.problem for row in rows] == ["", "scanned PDF without text", ""]
    assert [row.extracted_from for row in rows] == [".docx", "", ""]


def test_only_files_in_memory_and_columns_named_so_are_files(tmp_path: Path) -> None:
    """Neither objects in JSON, which strangers may write, nor texts that are paths."""
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    for cell in ({"path": str(secret)}, {"bytes": "x"}):
        line = json.dumps({"text": cell})
        (tmp_path / "a.jsonl").write_text(line)
        with pytest.raises(UserError, match=r"expected text in column 'text', got a value of type dict"):
            list(read_paths([tmp_path / "a.jsonl"], TEXT, Data()))
        with pytest.raises(UserError, match=r"expected text in column 'text', got a value of type dict"):
            list(rows_of([{"text": cell}], TEXT, Data()))
    named = Data(file_column="path")
    assert [row.values["text"] for row in rows_of([str(secret)], TEXT, named)] == [str(secret)]
    assert [row.values["text"] for row in rows_of([{"text": str(secret)}], TEXT, named)] == [str(secret)]
    assert [row.values["text"] for row in rows_of([{"path": str(secret)}], TEXT, named)] == ["secret"]
    assert [row.values["text"] for row in rows_of(pd.DataFrame({"path": [str(secret)]}), TEXT, named)] == ["secret"]


def test_lines_are_not_read_from_documents_and_words_are(tmp_path: Path) -> None:
    for name, kind in (("a.docx", "an office file or a ZIP archive"), ("a.eml", "a .eml file")):
        (tmp_path / name).write_bytes(KINDS[Path(name).suffix]("one\ntwo"))
        with pytest.raises(UserError, match=f"expected text in {name}, got {kind}; save its content as text"):
            list(read_paths([tmp_path / name], [Text("text", "text_column", each_line=True)], Data()))
    (row,) = read_paths([tmp_path / "a.docx"], [Words("text", "text_column", raw=True)], Data())
    assert (row.values["text"], row.extracted_from) == ("one\ntwo", ".docx")


# What is in each kind


def test_word(tmp_path: Path) -> None:
    """Headers, content controls, insertions, text boxes, notes and tables are text; deletions and fallbacks are not."""
    space = 'xmlns:w="http://schemas.openxmlformats.org/wordprocessingml/2006/main"'
    compatible = 'xmlns:mc="http://schemas.openxmlformats.org/markup-compatibility/2006"'
    box = "<w:txbxContent><w:p><w:r><w:t>In a box</w:t></w:r></w:p></w:txbxContent>"
    document = docx.Document()
    body = document.element.body
    for number, markup in enumerate(
        (
            f"<w:sdt {space}><w:sdtContent><w:p><w:r><w:t>Controlled</w:t></w:r></w:p></w:sdtContent></w:sdt>",
            f'<w:p {space}><w:pPr><w:tabs><w:tab w:val="left" w:pos="9"/></w:tabs></w:pPr><w:ins w:id="1" w:author="a">'
            '<w:r><w:t>New</w:t></w:r></w:ins><w:del w:id="2" w:author="a"><w:r><w:delText>Old'
            "</w:delText></w:r></w:del><w:r><w:tab/><w:t>word</w:t><w:br/><w:t>next</w:t></w:r></w:p>",
            f'<w:p {space} {compatible}><w:r><mc:AlternateContent><mc:Choice Requires="wps">{box}</mc:Choice>'
            f"<mc:Fallback>{box}</mc:Fallback></mc:AlternateContent></w:r></w:p>",
        )
    ):
        body.insert(number, parse_xml(markup))
    table = document.add_table(2, 2)
    for cell, text in zip(table._cells, ("Item", "Price", "", "12.50"), strict=True):
        cell.text = text
    document.sections[0].header.paragraphs[0].text = "Letterhead"
    (tmp_path / "a.docx").write_bytes(saved(document.save))
    assert lines(read(tmp_path / "a.docx")) == [
        "Letterhead", "Controlled", "New\tword", "next", "In a box", "Item\tPrice", "\t12.50",
    ]  # fmt: skip


def test_slides_with_tables_and_notes(tmp_path: Path) -> None:
    shown = pptx.Presentation()
    for number in range(11):
        slide = shown.slides.add_slide(shown.slide_layouts[5])
        slide.shapes.title.text = f"Title {number}"
    slide.notes_slide.notes_text_frame.text = "Do not forget"
    slide.shapes.add_table(1, 2, 0, 0, 9999, 9999).table.cell(0, 1).text = "Right"
    (tmp_path / "a.pptx").write_bytes(saved(shown.save))
    found = lines(read(tmp_path / "a.pptx"))
    assert found == [*(f"Title {number}" for number in range(11)), "\tRight", "Do not forget"]


def test_sheets(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import datetime

    import openpyxl

    book = openpyxl.Workbook()
    book.active.title = "Costs"
    book.active.append([datetime.date(2026, 5, 1), 12.0, 0.5, True, "=1+1"])
    book.create_sheet("Other").append([None, "Paint"])
    (tmp_path / "a.xlsx").write_bytes(saved(book.save))
    found = read(tmp_path / "a.xlsx")
    told = "longspan: a.xlsx is read as one document; save it as .csv to read each of its rows.\n"
    assert capsys.readouterr().err == told
    assert lines(found) == ["Costs", "2026-05-01\t12\t0.5\tTrue", "Other", "Paint"]


def test_open_documents(tmp_path: Path) -> None:
    markup = "One<text:s text:c='2'/>two<text:tab/>three<text:line-break/>four"
    hidden = "<text:tracked-changes><text:p>Deleted</text:p></text:tracked-changes>"
    content = open_document(markup)
    row = "<table:table-row><table:table-cell><text:p>a</text:p></table:table-cell><table:table-cell><text:p>b</text:p>"
    end = "</table:table-cell></table:table-row>"
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    changed = parts["content.xml"].decode().replace("<office:text>", f"<office:text>{hidden}")
    parts["content.xml"] = changed.replace("</office:text>", f"{row}{end}</office:text>").encode()
    (tmp_path / "a.odt").write_bytes(zipped(*parts.items()))
    assert lines(read(tmp_path / "a.odt")) == ["One  two\tthree", "four", "a\tb"]


def test_a_book_has_its_chapters_in_order_and_hyphens_join_lines(tmp_path: Path) -> None:
    (tmp_path / "a.epub").write_bytes(KINDS[".epub"]("\n".join(f"<h1>Chapter {n}</h1>Text" for n in range(11))))
    assert lines(read(tmp_path / "a.epub"))[::2] == [f"Chapter {number}" for number in range(11)]


def test_mail_has_its_headers_and_its_text_and_names_attachments(tmp_path: Path) -> None:
    (tmp_path / "a.eml").write_bytes(mail("Hello\nBob"))
    (tmp_path / "a.msg").write_bytes(KINDS[".msg"]("Hello\nBob"))
    expected = [
        "From: Ann <ann@example.org>", "To: bob@example.org", "Subject: A letter", "", "Hello", "Bob", "",
        "Attachments: plan.pdf",
    ]  # fmt: skip
    assert lines(read(tmp_path / "a.eml")) == expected
    found = lines(read(tmp_path / "a.msg"))
    assert found.pop(2).startswith("Date: ")
    assert found == expected


@pytest.mark.parametrize("charset", ["iso-8859-1", "us-ascii", "x-unknown"])
def test_mail_in_latin_1_whatever_it_says(charset: str, tmp_path: Path) -> None:
    head = f"Subject: =?iso-8859-1?Q?Gr=FC=DFe?=\nContent-Type: text/plain; charset={charset}\n"
    quoted = head + "Content-Transfer-Encoding: quoted-printable\n\nSch=F6ne Gr=FC=DFe=\n aus K=F6ln\n"
    (tmp_path / "a.eml").write_bytes(quoted.encode())
    assert lines(read(tmp_path / "a.eml")) == ["Subject: Grüße", "", "Schöne Grüße aus Köln"]


def test_mail_with_a_few_wrong_bytes_and_parts_without_names(tmp_path: Path) -> None:
    body = "Grüße aus Köln, viele Grüße".encode() + b" \xff\xfe end"
    (tmp_path / "a.eml").write_bytes(b"Subject: x\nContent-Type: text/plain; charset=utf-8\n\n" + body)
    assert lines(read(tmp_path / "a.eml"))[-1].startswith("Grüße aus Köln, viele Grüße ")
    message = EmailMessage()
    message.set_content("Text")
    message.add_attachment(EmailMessage())
    (tmp_path / "b.eml").write_bytes(bytes(message))
    assert lines(read(tmp_path / "b.eml")) == ["Text"]


def test_mail_of_html_alone_and_with_headers_against_the_standard(tmp_path: Path) -> None:
    message = EmailMessage()
    message["Subject"] = "x"
    message.set_content("<p>Dear <b>Bob</b></p><script>no</script>", subtype="html")
    (tmp_path / "a.eml").write_bytes(bytes(message).replace(b"Subject: x", "Subject: Grüße aus Köln".encode("latin-1")))
    assert lines(read(tmp_path / "a.eml")) == ["Subject: Grüße aus Köln", "", "Dear Bob"]
    (tmp_path / "b.eml").write_bytes(b"From: =?utf-8?B?!!?= <\nTo: ((\nDate: x\n\nText")
    assert lines(read(tmp_path / "b.eml"))[-1] == "Text"


# What people have


def test_awkward_names_and_contents(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = "<html><body><p>Caf\u00e9 bill</p></body></html>"
    (tmp_path / "page.DOC.docx").write_text(page, encoding="utf-8")
    (tmp_path / "export.xls").write_text(f"\ufeff <table><tr><td>{page}", encoding="utf-8")
    assert lines(read(tmp_path / "page.DOC.docx")) == lines(read(tmp_path / "export.xls")) == ["Café bill"]
    problems = {
        "empty.docx": (b"", "no text"),
        "text.pdf": (b"a text", "damaged (not a .pdf file)"),
        "locked.docx": (compound({"EncryptedPackage": b"x", "EncryptionInfo": b"x"}), "password"),
        "locked.pdf": (pdf("secret", password="x"), "password"),
        "scan.pdf": (pdf(""), "scanned PDF without text"),
        "old.docx": (compound({"WordDocument": b"x"}), "not text (a file of Word or PowerPoint before 2007; save it as "
                     ".docx or .pptx)"),
        "iwork.docx": (zipped(("Index/Document.iwa", "x")), "not text (a ZIP archive, or a document of an "
                        "unknown kind)"),
        "half.docx": (word("x")[:-900], "damaged (File is not a zip file)"),
        "winmail.dat": (b"\x78\x9f\x3e\x22more", "not text (a winmail.dat of Outlook)"),
        "rest.xlsx": (sheet("x")[:-900], "damaged (File is not a zip file)"),
        "half.pdf": (b"%PDF-1.7\n%", "damaged (Failed to load document (PDFium: Data format error).)"),
        "no.odt": (zipped(("META-INF/manifest.xml", "<x/>"), ("mimetype", "")), "damaged (\"There is no item named "
                   "'content.xml' in the archive\")"),
    }  # fmt: skip
    for name, (content, expected) in problems.items():
        assert problem(content, name, tmp_path) == expected, name
    with zipfile.ZipFile(tmp_path / "macro.docm", "w") as archive:
        archive.writestr("word/vbaProject.bin", b"Sub AutoOpen()")
        archive.writestr("word/document.xml", "<w><p><t>text</t></p></w>")
    assert lines(read(tmp_path / "macro.docm")) == ["text"]
    for hidden in (".hidden.docx", "~$lock.docx"):
        (tmp_path / hidden).write_bytes(b"\x05owner")
    (tmp_path / "mac.pages").write_bytes(b"PK\x03\x04")
    (tmp_path / "link.docx").symlink_to(tmp_path / "page.DOC.docx")
    capsys.readouterr()
    found = {row.where.partition(",")[0]: row for row in read_paths([tmp_path], TEXT, Data())}
    assert found.keys() == {*problems, "page.DOC.docx", "export.xls", "link.docx", "macro.docm"}
    assert capsys.readouterr().err == "longspan: not read: 1 .pages file (not in a format that is read as text).\n"


def test_training_counts_what_it_cannot_read(tmp_path: Path) -> None:
    for label in "ab":
        (tmp_path / label).mkdir()
        (tmp_path / label / "good.docx").write_bytes(word(f"text {label}"))
        (tmp_path / label / "scan.pdf").write_bytes(pdf(""))
        (tmp_path / label / "bad.docx").write_bytes(b"PK\x03\x04")
    settings = Data(path=str(tmp_path), validation_fraction=0, skip_bad_rows=True)
    found = load(settings, COLUMNS)
    assert found.skipped == {"scanned PDF without text": 2, "damaged": 2}
    assert found.splits["train"]["text"][:] == ["text a", "text b"]
    with pytest.raises(
        UserError, match=r"a/bad.docx: damaged \(File is not a zip file\); fix it, or set data.skip_bad"
    ):
        load(Data(path=str(tmp_path)), COLUMNS)


def test_a_document_by_itself_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "book.pdf").write_bytes(pdf(""))
    with pytest.raises(
        UserError, match=r"expected text in 'book.pdf', got scanned PDF without text; choose another fi"
    ):
        load(Data(path=str(tmp_path / "book.pdf")), [Text("text", "text_column", lines=True)])


def test_without_packages_one_sentence_counts_the_kinds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_office(tmp_path / "in", {f"{number // 10}/{number}": f"text {number}" for number in range(20)})
    monkeypatch.setattr(documents, "is_installed", lambda module: False)
    assert len(list(read_paths([tmp_path / "in"], TEXT, Data()))) == 10
    told = (
        'not read: 2 .epub, 2 .msg, 2 .pdf, 2 .rtf, 2 .xlsx files (`pip install "longspan[documents]"` reads them).\n'
    )
    assert capsys.readouterr().err == f"longspan: {told}"
    assert set(load(Data(path=str(tmp_path / "in"), validation_fraction=0), COLUMNS).splits["train"]["label"]) == {
        "0",
        "1",
    }
    assert told in capsys.readouterr().err
    row = read(tmp_path / "in" / "0" / "3.pdf")
    assert row.problem == 'not read (`pip install "longspan[documents]"` reads .pdf files)'


@pytest.mark.usefixtures("process")
def test_without_packages_documents_with_another_name_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their kind is found in the other process."""
    (tmp_path / "packages").mkdir()
    for name in ("pypdfium2", "olefile", "striprtf", "python_calamine"):
        (tmp_path / "packages" / f"{name}.py").write_text(f"raise ModuleNotFoundError(name={name!r})")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    for suffix in (".pdf", ".rtf", ".msg", ".xlsx"):
        name = f"a{suffix}.txt"
        wanted = 'not read (`pip install "longspan[documents]"` reads .txt files)'
        assert problem(KINDS[suffix]("text"), name, tmp_path) == wanted


# Attacks


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Iterator[documents._Process]:
    """A process of a test's own."""
    found = documents._Process()
    monkeypatch.setattr(documents, "_process", found)
    yield found
    found.close()


def entities(kind: str) -> str:
    if kind == "laughs":
        nested = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))
        return f'<!DOCTYPE x [<!ENTITY e0 "ha">{nested}]><x><p><t>&e11;</t></p></x>'
    return '<!DOCTYPE x [<!ENTITY e SYSTEM "file:///etc/passwd">]><x><p><t>&e;</t></p></x>'


@pytest.mark.parametrize("kind", ["laughs", "external"])
@pytest.mark.parametrize("suffix", [".docx", ".pptx", ".odt", ".epub"])
def test_entities_are_refused(kind: str, suffix: str, tmp_path: Path) -> None:
    parts = {
        ".docx": [("word/document.xml", entities(kind))],
        ".pptx": [("ppt/presentation.xml", "<x/>"), ("ppt/slides/slide1.xml", entities(kind))],
        ".odt": [("META-INF/manifest.xml", "<x/>"), ("content.xml", entities(kind))],
        ".epub": [("META-INF/container.xml", entities(kind))],
    }
    assert problem(zipped(*parts[suffix]), f"a{suffix}", tmp_path) == "damaged (it declares XML entities)"


def test_packed_bombs_end_early(tmp_path: Path) -> None:
    start = time.process_time()
    paragraphs = b"<w><p><t>" + b"0" * (300 << 20)
    bomb = zipped(("word/document.xml", paragraphs))
    assert len(bomb) < 1 << 20
    assert problem(bomb, "a.docx", tmp_path) == "too large (more than 268,435,456 bytes unpacked)"
    nested = "<x>" * 2_000_000
    assert problem(zipped(("word/document.xml", nested)), "b.docx", tmp_path).startswith("damaged (no element")
    assert time.process_time() - start < 60


def test_a_sheet_that_needs_too_much_memory_is_a_bad_row_and_the_next_file_is_read(tmp_path: Path) -> None:
    import openpyxl

    book = openpyxl.Workbook()
    for cell in ("A1", "XFD1048576"):
        book.active[cell] = "x"
    found = problem(saved(book.save), "a.xlsx", tmp_path)
    assert found.startswith(("damaged or too large (", "too large (")), found
    assert problem(word("good"), "b.docx", tmp_path) == ""


def test_deeply_nested_mail_and_rich_text_end(tmp_path: Path) -> None:
    nested = b"".join(b"Content-Type: multipart/mixed; boundary=b%d\n\n--b%d\n" % (n, n) for n in range(3000))
    assert problem(nested + b"\nText", "a.eml", tmp_path) in ("", "no text") or "damaged" in problem(
        nested, "a.eml", tmp_path
    )
    assert problem(b"{\\rtf1 " + b"{" * 1_000_000 + b"text", "a.rtf", tmp_path) == ""


def many_pages(count: int) -> bytes:
    """A PDF of a page that is there many times."""
    words = b"BT /F 9 Tf 10 700 Td 11 TL " + b"(ten words that are on each of very many pages) '" * 50 + b" ET"
    objects = [
        b"<< /Type /Catalog /Pages 2 0 R >>",
        b"<< /Type /Pages /Count %d /Kids [%s] >>" % (count, b" ".join(b"%d 0 R" % (n + 5) for n in range(count))),
        b"<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
        b"<< /Length %d >>\nstream\n%s\nendstream" % (len(words), words),
        *[
            b"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 600 800] /Contents 4 0 R "
            b"/Resources << /Font << /F 3 0 R >> >> >>"
        ]
        * count,
    ]
    file, places = b"%PDF-1.4\n", []
    parts = [file]
    at = len(file)
    for number, content in enumerate(objects, 1):
        places.append(at)
        parts.append(b"%d 0 obj\n%s\nendobj\n" % (number, content))
        at += len(parts[-1])
    table = b"".join(b"%010d 00000 n \n" % place for place in places)
    size = len(objects) + 1
    end = b"xref\n0 %d\n0000000000 65535 f \n%strailer << /Size %d /Root 1 0 R >>\nstartxref\n%d\n%%%%EOF"
    return b"".join([*parts, end % (size, table, size, at)])


@pytest.mark.usefixtures("process")
def test_thousands_of_pages_are_read_or_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = many_pages(3000)
    assert problem(content, "a.pdf", tmp_path) == ""
    monkeypatch.setattr(documents, "_TIMEOUT", 0.2)
    assert problem(content, "a.pdf", tmp_path) == "too large (more than 60 seconds)"
    monkeypatch.setattr(documents, "_TIMEOUT", 60)
    assert problem(word("good"), "b.docx", tmp_path) == ""


@pytest.mark.skipif(not hasattr(signal, "SIGXCPU"), reason="the system has no limit of processor time")
def test_processor_time_is_limited_for_each_file() -> None:
    script = (
        "import longspan.data.sources.files.readers as r, time\nr.SECONDS = 0\nfor n in range(2):\n    r._limit(0)\n"
    )
    spend = "    start = time.process_time()\n    while time.process_time() < start + {}: pass\n"
    ran = [subprocess.run([sys.executable, "-c", script + spend.format(seconds)]) for seconds in (0.4, 30)]
    assert [one.returncode for one in ran] == [0, -signal.SIGXCPU]


ATTEMPTS = ("os.system('true')", "socket.socket().connect(('127.0.0.1', 9))", "subprocess.run(['true'])", "os.fork()")


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize("attempt", ATTEMPTS)
def test_readers_can_execute_and_fetch_nothing(attempt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "striprtf").mkdir()
    (tmp_path / "striprtf" / "__init__.py").write_text("")
    (tmp_path / "striprtf" / "striprtf.py").write_text(f"import os, socket, subprocess\n{attempt}")
    monkeypatch.syspath_prepend(tmp_path)
    assert problem(rich_text("x"), "a.rtf", tmp_path) == "damaged (documents execute and fetch nothing)"


@pytest.mark.usefixtures("process")
def test_modules_of_the_current_folder_are_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("olefile", "pypdfium2", "striprtf", "zipfile", "lxml", "email"):
        (tmp_path / f"{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    for suffix, make in KINDS.items():
        assert problem(make("text"), f"a{suffix}", tmp_path) == ""
    assert not (tmp_path / "ran").exists()


@pytest.mark.usefixtures("process")
def test_an_interpreter_that_cannot_read_documents_is_no_fault_of_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(
        UserError, match=r"expected '/bin/false' to run longspan to read a document, got exit code 1; check"
    ):
        document_text(word("x"), ".docx")


def test_threads_and_copies_of_the_process_get_their_own_answers() -> None:
    found: dict[int, str] = {}

    def ask(number: int) -> None:
        found[number] = document_text(word(f"text {number}"), ".docx")

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {number: f"text {number}" for number in range(8)}
    if hasattr(os, "fork"):
        child = os.fork()
        if not child:
            os._exit(document_text(word("child"), ".docx") != "child")
        assert document_text(word("parent"), ".docx") == "parent"
        assert os.waitpid(child, 0)[1] == 0


def test_an_interruption_leaves_no_answer_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = documents._ask

    def interrupted(*arguments: Any) -> Any:
        ask(*arguments)
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(documents, "_ask", interrupted)
        with pytest.raises(KeyboardInterrupt):
            document_text(word("first"), ".docx")
    assert document_text(word("second"), ".docx") == "second"


def test_the_reason_is_raised_and_rich_text_with_pictures_is_text() -> None:
    with pytest.raises(NotText, match="password"):
        document_text(pdf("x", password="y"), ".pdf")
    assert document_text((RTF % r"{\pict\wmetafile8 0102}a \'fc\par").encode(), ".rtf").strip() == "a ü"
