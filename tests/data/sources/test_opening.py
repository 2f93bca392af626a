"""Packed files, encodings, and what is not a file: read exactly, in little memory, or refused with one sentence."""

import errno
import gzip
import io
import lzma
import os
import socket
import tracemalloc
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pytest

from longspan.data.columns.kinds import Column, Label, Text
from longspan.data.sources.files import decoding, opening
from longspan.data.sources.formats import tables
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.loading import load
from longspan.data.sources.paths import read_paths
from longspan.errors import UserError
from longspan.tasks.document_classification.options import ClassificationData

TEXT: list[Column] = [Text("text", "text_column")]
LABELLED: list[Column] = [*TEXT, Label("label", "label_column")]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def zstd(content: bytes) -> bytes:
    return pa.Codec("zstd").compress(content, asbytes=True)


def zipped(*members: tuple[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return buffer.getvalue()


PACK: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".zst": zstd,
    ".ZIP": lambda content: zipped(("inside", content)),
}


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def rows(path: Path | str, columns: list[Column] = TEXT, **settings: Any) -> list[Row]:
    return [row._replace(file=None) for row in read_paths([path], columns, ClassificationData(**settings))]


def texts(path: Path, columns: list[Column] = TEXT, **settings: Any) -> list[Any]:
    return [row.values.get("text") for row in rows(path, columns, **settings)]


@pytest.mark.parametrize("packed", PACK)
def test_packed_files_of_every_kind(tmp_path: Path, packed: str) -> None:
    pack = PACK[packed]
    table = "text,label\n" + "Grüße,a\nb,c\n" * 3000
    assert texts(write(tmp_path / f"a.csv{packed}", pack(table.encode()))) == ["Grüße", "b"] * 3000
    assert texts(write(tmp_path / f"a.tsv{packed}", pack(b"text\tlabel\na, b\tc\n"))) == ["a, b"]
    assert texts(write(tmp_path / f"a.jsonl{packed}", pack(b'{"text": "a"}\n'))) == ["a"]
    assert rows(write(tmp_path / "books" / f"b.txt{packed}", pack("Grüße\r\n".encode()))) == [
        Row({"text": "Grüße\r\n"}, f"b.txt{packed}")
    ]
    assert rows(tmp_path / "books") == [Row({"text": "Grüße\r\n"}, f"b.txt{packed}")]
    write(tmp_path / "classes" / "good" / f"b.txt{packed}", pack(b"fine"))
    assert rows(tmp_path / "classes", LABELLED) == [Row({"text": "fine", "label": "good"}, f"good/b.txt{packed}")]
    assert load(ClassificationData(path=str(tmp_path / "books"), validation_fraction=0.0), TEXT).splits["train"][
        "text"
    ][:] == ["Grüße\r\n"]


@pytest.mark.parametrize("packed", PACK)
def test_packed_files_that_are_cut_off_or_something_else(tmp_path: Path, packed: str) -> None:
    content = PACK[packed](("text,label\n" + "".join(f"some text {number},a\n" for number in range(9999))).encode())
    kind = {".gz": "gzip", ".xz": "xz", ".zst": "zstd", ".ZIP": "zip"}[packed]
    for damaged in (content[: len(content) // 2], b"some text"):
        for name in ("a.csv", "a.txt"):
            with pytest.raises(
                UserError, match=rf"{name}{packed} is not a complete {kind} file \(.*\); compress it aga"
            ):
                rows(write(tmp_path / f"{name}{packed}", damaged))


def test_a_zst_file_of_several_frames(tmp_path: Path) -> None:
    lines = [f'{{"text": "{number} {"x" * 1000}"}}\n'.encode() for number in range(500)]
    skippable = b"\x50\x2a\x4d\x18" + (4).to_bytes(4, "little") + b"abcd"
    frames = [zstd(b"".join(lines[start : start + 100])) for start in range(0, 500, 100)]
    content = skippable.join(frames)
    assert len(rows(write(tmp_path / "a.jsonl.zst", content))) == 500
    # The last frame is cut off.
    with pytest.raises(UserError, match="not a complete zstd file"):
        rows(write(tmp_path / "a.jsonl.zst", content[:-9]))


def test_a_zip_has_one_file(tmp_path: Path) -> None:
    one = ("reviews.csv", b"text\na\n")
    assert texts(write(tmp_path / "all.zip", zipped(one))) == ["a"]
    assert texts(write(tmp_path / "all.csv.zip", zipped(("folder/", b""), one, ("__MACOSX/._reviews.csv", b"x")))) == [
        "a"
    ]
    assert texts(write(tmp_path / "all.zip", zipped(("book.txt", b"a book")))) == ["a book"]
    with pytest.raises(UserError, match=r"one file in all.zip, got 4 \(a.csv, b.csv, c.csv, ...\); decompress it"):
        rows(write(tmp_path / "all.zip", zipped(*((f"{name}.csv", b"text\na\n") for name in "abcd"))))
    with pytest.raises(UserError, match=r"one file in all.csv.zip, got none; decompress it"):
        rows(write(tmp_path / "all.csv.zip", zipped()))
    locked = bytearray(zipped(one))
    # Bit 0 of the flags, in the file's own header and in the directory at the end.
    locked[6] |= 1
    locked[locked.index(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(UserError, match=r"without a password, got all.csv.zip with one; decompress it first"):
        rows(write(tmp_path / "all.csv.zip", bytes(locked)))
    strange = bytearray(zipped(one))
    strange[8] = strange[strange.index(b"PK\x01\x02") + 10] = 99
    with pytest.raises(
        UserError, match=r"all.csv.zip uses an unsupported compression method \(.*\); decompress it first"
    ):
        rows(write(tmp_path / "all.csv.zip", bytes(strange)))


@pytest.mark.slow
@pytest.mark.parametrize("packed", PACK)
def test_small_files_that_unpack_to_large_ones_do_not_fill_the_memory(
    tmp_path: Path, packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    line, count = b"x" * 9999 + b"\n", 3000
    table = write(tmp_path / f"a.csv{packed}", PACK[packed](b"text\n" + line * count))
    bomb = write(tmp_path / f"b.csv{packed}", PACK[packed](b"text\n" + b"x" * len(line) * count))
    book = write(tmp_path / f"b.txt{packed}", PACK[packed](line * count))
    monkeypatch.setattr(decoding, "LONGEST_LINE", 1 << 20)
    monkeypatch.setattr(opening, "LARGEST_DOCUMENT", 1 << 20)
    tracemalloc.start()
    try:
        assert sum(1 for _ in read_paths([table], TEXT, ClassificationData())) == count
        with pytest.raises(
            UserError, match=rf"fewer than 1,048,576 characters in a line, got more in b.csv{packed}, line 2"
        ):
            rows(bomb)
        with pytest.raises(
            UserError, match=rf"at most 1,048,576 bytes in a compressed document, got more in b.txt{packed}"
        ):
            rows(book)
        # An xz decoder keeps its dictionary of 8 MiB.
        assert tracemalloc.get_traced_memory()[1] < len(line) * count * 0.5
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("packed", PACK)
def test_a_row_of_many_long_fields_does_not_fill_the_memory(
    tmp_path: Path, packed: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Each field and each line is short, and no row ends.
    bomb = write(tmp_path / f"a.csv{packed}", PACK[packed](b"text,label\na,x\n" + b'"y\n",' * 40_000))
    monkeypatch.setattr(tables, "LONGEST_LINE", 100_000)
    with pytest.raises(
        UserError, match=rf"fewer than 100,000 characters in a row, got more in a.csv{packed}, from line 3; close"
    ):
        rows(bomb)


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (zipped(("content.xml", b"a sheet")), "an office file or a ZIP archive"),
        (b"%PDF-1.7\nsome text", "a PDF"),
        (b"{\\rtf1 some text}", "rich text"),
        (b"PAR1\x15\x04", "Parquet"),
        (b"\x89PNG\r\n", "a picture"),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "auto"])
def test_files_of_other_programs_are_no_text(tmp_path: Path, content: bytes, kind: str, encoding: str) -> None:
    settings = ClassificationData(encoding=encoding)
    # Of the others, the text is read.
    for name in ("a.txt", "a") if kind in ("Parquet", "a picture") else ():
        found = list(read_paths([write(tmp_path / name, content)], TEXT, settings))
        assert [(row.values, row.problem) for row in found] == [({}, f"not text ({kind})")]
    for name in ("a.csv", "a.jsonl"):
        with pytest.raises(UserError, match=rf"expected text in {name}, got {kind}; save its content as text"):
            list(read_paths([write(tmp_path / name, content)], TEXT, settings))


TABLES = {
    "a.csv": 'text,label\n"Grüße,\n€",x\nb,y\n',
    "a.jsonl": '{"text": "Grüße,\\n€", "label": "x"}\n{"text": "b"}\n',
}


@pytest.mark.parametrize("name", [*TABLES, "a.txt", "all/a.txt", "-"])
@pytest.mark.parametrize("encoding", ["utf-8", "UTF8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "cp1252"])
def test_encodings(tmp_path: Path, name: str, encoding: str) -> None:
    for mark in ("", "\ufeff") if encoding.startswith("utf-16-") else ("",):
        content = (mark + TABLES.get(name, "Grüße,€\nb")).encode(encoding)
        if name == "-":
            found = list(read_paths(["-"], TEXT, ClassificationData(encoding=encoding), stdin=io.BytesIO(content)))
            assert [row.values["text"] for row in found] == ["Grüße,€", "b"]
            continue
        path = write(tmp_path / name, content)
        expected = ["Grüße,\n€", "b"] if name in TABLES else ["Grüße,€\nb"]
        assert texts(path.parent if "/" in name else path, encoding=encoding) == expected


@pytest.mark.parametrize(
    ("encoding", "content", "damage"),
    [("utf-16", "text\nok\nbad {}\nok\n", "\ud800"), ("shift-jis", "text\nok\nbad {}\nok\n", "\udcff")],
)
@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.txt", "-"])
def test_damaged_bytes_in_other_encodings(tmp_path: Path, name: str, encoding: str, content: str, damage: str) -> None:
    if name == "a.jsonl":
        content = '{{"text": "ok"}}\n{{"text": "bad {}"}}\n{{"text": "ok"}}\n'
    errors = "surrogatepass" if encoding == "utf-16" else "surrogateescape"
    content_bytes = content.format(damage).encode(encoding, errors)
    if name == "-":
        data, stdin = ClassificationData(encoding=encoding), io.BytesIO(content_bytes)
        found = list(read_paths(["-"], TEXT, data, stdin=stdin))[1:]
    else:
        found = rows(write(tmp_path / name, content_bytes), encoding=encoding)
    broken = f"broken {encoding}"
    before = len(content.partition("{}")[0].encode(encoding))
    if name == "a.txt":
        assert found == [Row({}, f"a.txt, byte {before}", broken)]
        with pytest.raises(
            UserError,
            match=f"expected text in {encoding}, got another encoding or no text at a.txt, byte {before}; save",
        ):
            load(ClassificationData(path=str(tmp_path / name), encoding=encoding), TEXT)
        return
    place = {"a.csv": "a.csv, row 2", "a.jsonl": "a.jsonl, line 2", "-": "standard input, line 3"}[name]
    assert [row.problem for row in found] == ["", broken, ""]
    assert found[1] == Row({}, place, broken)


def test_a_byte_order_mark_counts_in_the_place(tmp_path: Path) -> None:
    assert rows(write(tmp_path / "a.txt", b"\xef\xbb\xbfabc\xff"))[0].where == "a.txt, byte 6"


def test_other_encodings_than_named(tmp_path: Path) -> None:
    content = "text,label\nGrüße,a\n"
    with pytest.raises(
        UserError,
        match=r"a.csv: expected utf-16, got another encoding \(.*BOM\); save .*, or set data.encoding=auto",
    ):
        rows(write(tmp_path / "a.csv", content), encoding="utf-16")
    with pytest.raises(
        UserError, match=r"expected UTF-8 in a.csv, got UTF-16 .*; set data.encoding=utf-16, or save the file as UTF-8"
    ):
        rows(write(tmp_path / "a.csv", content.encode("utf-16")))
    (row,) = rows(write(tmp_path / "a.txt", "even"), encoding="utf-16")
    assert row == Row({}, "a.txt, byte 0", "broken utf-16")
    with pytest.raises(UserError, match=r"expected text in every row, in ascii, got b.csv with broken ascii in 1 row"):
        load(ClassificationData(path=str(write(tmp_path / "b.csv", content)), encoding="ascii"), TEXT)


def test_what_is_cached_depends_on_the_encoding(tmp_path: Path) -> None:
    path = write(tmp_path / "a.txt", "Grüße".encode("cp1252"))
    for encoding, text in (("cp1252", "Grüße"), ("cp437", "Gr\u207f\u2580e"), ("cp1252", "Grüße")):
        config = ClassificationData(path=str(path), encoding=encoding, validation_fraction=0.0)
        assert load(config, TEXT).splits["train"]["text"][:] == [text]


@pytest.mark.parametrize(
    ("encoding", "hint"),
    [("uft-8", "did you mean 'utf-?8'"), ("latin-11", "did you mean 'latin"), ("base64", "did you mean|try auto"),
     ("?", "try auto, utf-8, utf-16, latin-1 or cp1252"), ("", "try auto"), ("a\0b", "try auto")],
)  # fmt: skip
def test_names_that_are_no_encodings(encoding: str, hint: str) -> None:
    with pytest.raises(UserError, match=rf"data.encoding must be the name of a text encoding, or 'auto', .*; ({hint})"):
        ClassificationData(encoding=encoding)


@pytest.fixture
def special(tmp_path: Path) -> Iterator[dict[str, Path]]:
    """What is not a file, and whose reading would never end."""
    folder = tmp_path / "in"
    folder.mkdir()
    os.mkfifo(folder / "pipe.txt")
    (folder / "loop.txt").symlink_to(folder / "loop.txt")
    (folder / "lost.txt").symlink_to("nowhere.txt")
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(str(folder / "socket.txt"))
        yield {
            r"got a named pipe \(FIFO\) at '.*pipe.txt'; use a regular file": folder / "pipe.txt",
            "got a socket at '.*socket.txt'; use a regular file": folder / "socket.txt",
            "got a device at '/dev/zero'; use a regular file": Path("/dev/zero"),
            "'.*loop.txt' is a link that leads back to itself; fix or remove the link": folder / "loop.txt",
            "'.*lost.txt' is a link to 'nowhere.txt', which does not exist; fix or remove the link": folder
            / "lost.txt",
            rf"expected to read '.*xxx', got an error \({os.strerror(errno.ENAMETOOLONG)}\)": folder / ("x" * 300),
            "there is no file or folder '.*pipe.txt/a.txt'": folder / "pipe.txt" / "a.txt",
            "there is no file or folder '~no-such-user/a.txt'": Path("~no-such-user/a.txt"),
            r"expected a path, got 'a\\x00b' \(it contains a null character\); check": Path("a\0b"),
        }


@pytest.mark.timeout(20)
def test_what_is_not_a_file_is_refused(special: dict[str, Path], tmp_path: Path) -> None:
    for message, path in special.items():
        for columns in (TEXT, LABELLED):
            with pytest.raises(UserError, match=message):
                rows(path, columns)
            for config in (ClassificationData(path=str(path)), ClassificationData(train=str(path))):
                with pytest.raises(UserError, match=f"data.(path|train): .*{message}"):
                    load(config, columns)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["pipe.txt", "loop.txt", "lost.txt", "socket.txt"])
def test_what_is_not_a_file_among_the_documents(special: dict[str, Path], tmp_path: Path, name: str) -> None:
    write(tmp_path / "all" / "good" / "a.txt", "a")
    write(tmp_path / "all" / "bad" / "b.txt", "b")
    if name == "loop.txt":
        (tmp_path / "all" / "bad" / name).symlink_to(name)
    else:
        (tmp_path / "in" / name).rename(tmp_path / "all" / "bad" / name)
    for columns in (TEXT, LABELLED):
        with pytest.raises(UserError, match=rf"{name}' is a |got a .* at .*{name}'"):
            rows(tmp_path / "all", columns)
        with pytest.raises(UserError, match=rf"{name}' is a |got a .* at .*{name}'"):
            load(ClassificationData(path=str(tmp_path / "all")), columns)
    # Where it is not one of the documents it does not matter.
    message = {"loop.txt": "leads back to itself", "lost.txt": "which does not exist"}.get(name, "use a regular file")
    with pytest.raises(UserError, match=message):
        rows(tmp_path / "all")
    (tmp_path / "all" / "bad" / name).rename(tmp_path / "all" / "bad" / "other.lock")
    assert texts(tmp_path / "all") == ["b", "a"]


def test_a_folder_that_contains_itself(tmp_path: Path) -> None:
    write(tmp_path / "all" / "good" / "a.txt", "a")
    (tmp_path / "all" / "good" / "again").symlink_to(tmp_path / "all")
    for columns in (TEXT, LABELLED):
        with pytest.raises(UserError, match=r"good/again.*' is a link to a folder that contains it; remove the link"):
            rows(tmp_path / "all", columns)


def test_a_folder_linked_twice_is_read_twice(tmp_path: Path) -> None:
    write(tmp_path / "all" / "one" / "a.txt", "a")
    (tmp_path / "all" / "two").symlink_to(tmp_path / "all" / "one")
    assert [row.where for row in rows(tmp_path / "all")] == ["one/a.txt", "two/a.txt"]


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl.gz", "a.txt", "a.parquet", "a.jsonl.zst"])
@pytest.mark.parametrize("code", [errno.EACCES, errno.ENOENT, errno.EIO])
def test_files_that_cannot_be_opened_or_vanish(
    tmp_path: Path, name: str, code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / name, TABLES.get(name, "x"))

    def fail(*_: Any, **__: Any) -> Any:
        # Tests may run as root, who may read everything.
        raise OSError(code, os.strerror(code), str(path))

    for owner, attribute in ((Path, "open"), (gzip, "open"), (pa, "OSFile")):
        monkeypatch.setattr(owner, attribute, fail)
    if name == "a.parquet":
        monkeypatch.setattr("pyarrow.parquet.ParquetFile", fail)
    for call in (lambda: rows(path), lambda: load(ClassificationData(path=str(path)), TEXT)):
        with pytest.raises(UserError, match=rf"{os.strerror(code)}") as error:
            call()
        assert name in str(error.value)
        assert "\n" not in str(error.value)


def test_a_folder_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "all" / "good" / "a.txt", "a")

    def fail(folder: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(folder))

    monkeypatch.setattr(os, "scandir", fail)
    for columns in (TEXT, LABELLED):
        with pytest.raises(UserError, match=r"expected to read the folder '.*all', got an error \(Permission denied\)"):
            load(ClassificationData(path=str(tmp_path / "all")), columns)
