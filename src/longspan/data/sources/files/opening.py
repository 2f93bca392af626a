"""Opening files: finding, decompressing and reading them, with one sentence for whatever goes wrong."""

import codecs
import errno
import gzip
import lzma
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from longspan.data.sources.files.decoding import NotText, binary_kind, decode, encoding_name
from longspan.data.sources.files.documents import NEEDS, document_text, needs_reader
from longspan.data.sources.files.encodings import AUTO, find_encoding, mark_of
from longspan.data.sources.files.html import SUFFIXES as HTML
from longspan.data.sources.files.html import html_text
from longspan.errors import UserError, did_you_mean, nearest
from longspan.machine.printing import printable

COMPRESSED = {".gz": "gzip", ".xz": "xz", ".zst": "zstd", ".zip": "zip"}
"""Suffixes of compressed files, and the names of their formats."""

LARGEST_DOCUMENT = 1 << 31
"""Maximum number of bytes in a compressed document, so that a small one cannot fill the memory."""

_CHUNK = 1 << 20
_PAGE = re.compile(rb"(\xef\xbb\xbf)?\s*<(!doctype html|html|head|body|meta|table)\b", re.IGNORECASE)


def missing(path: Path) -> str:
    """Return the message for a path that does not exist, with the most similar name in its folder, if any."""
    try:
        siblings = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]
    except OSError:
        siblings = []
    # Names of one kind of file are alike in their ends alone.
    alike = [name for name in siblings if nearest(path.stem, [Path(name).stem])]
    return f"there is no file or folder {str(path)!r}; {did_you_mean(path.name, alike) or 'check the path.'}"


def expand(path: Path | str) -> Path:
    """Return a path with `~` expanded to the home folder, or unchanged if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def examine(path: Path, setting: str = "") -> os.stat_result:
    """File status of a regular file or a folder, links followed.

    Args:
        path: The file or folder.
        setting: The beginning of messages.

    Raises:
        UserError: It does not exist, cannot be reached, or is neither, so that reading it might never end.
    """
    begin = f"{setting}: " if setting else ""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            target = str(path.readlink())
            raise UserError(
                f"{begin}{str(path)!r} is a link to {target!r}, which does not exist; fix or remove the link."
            ) from None
        raise UserError(f"{begin}{missing(path)}") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(
                f"{begin}{str(path)!r} is a link that leads back to itself; fix or remove the link."
            ) from None
        raise UserError(f"{begin}expected to read {str(path)!r}, got an error ({error.strerror}); check it.") from None
    except ValueError as error:
        # Python's own words differ from one version to the next.
        reason = "it contains a null character" if "\0" in str(path) else error
        raise UserError(f"{begin}expected a path, got {str(path)!r} ({reason}); check it.") from None
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        kind = (
            "a named pipe (FIFO)"
            if stat.S_ISFIFO(found.st_mode)
            else "a socket" if stat.S_ISSOCK(found.st_mode) else "a device"
        )  # fmt: skip
        raise UserError(
            f"{begin}expected a file or a folder, got {kind} at {str(path)!r}; use a regular file, or remove it from "
            "the "
            "folder."
        )
    return found


def suffix(path: Path) -> str:
    """Return the suffix in lower case; for a compressed file, the one before .gz and the like."""
    return (path.with_suffix("") if path.suffix.lower() in COMPRESSED else path).suffix.lower()


@contextmanager
def open_packed(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes, decompressed if its name ends in .gz, .xz, .zst or .zip.

    Raises:
        UserError: It cannot be read, is not compressed in this format, is incomplete, or is a .zip with no file or
            several.
    """
    with open_measured(path) as (stream, _):
        yield stream


@contextmanager
def open_measured(path: Path) -> Iterator[tuple[BinaryIO, BinaryIO]]:
    """Open a file as `open_packed` does, and yield the packed one, too, whose `tell` is about what has been read."""
    kind = path.suffix.lower()
    try:
        with ExitStack() as stack:
            raw = stack.enter_context(path.open("rb"))
            yield _open(raw, path, kind, stack), raw
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise _incomplete(path, kind, error) from None
    except OSError as error:
        if error.errno is None and kind == ".zst":
            raise _incomplete(path, kind, error) from None
        if error.filename is None and error.errno is None:
            raise
        raise UserError(
            f"expected to read {printable(path.name)}, got an error for {str(error.filename or path)!r} "
            f"({error.strerror}); check it."
        ) from None


def _incomplete(path: Path, kind: str, error: Exception) -> UserError:
    return UserError(f"{printable(path.name)} is not a complete {COMPRESSED[kind]} file ({error}); compress it again.")


def _open(raw: BinaryIO, path: Path, kind: str, stack: ExitStack) -> BinaryIO:
    if kind == ".gz":
        return cast(BinaryIO, stack.enter_context(gzip.open(raw)))
    if kind == ".xz":
        return cast(BinaryIO, stack.enter_context(lzma.open(raw)))
    if kind == ".zip":
        return cast(BinaryIO, stack.enter_context(_open_member(stack.enter_context(zipfile.ZipFile(raw)), path)))
    if kind == ".zst":
        from pyarrow import CompressedInputStream

        return cast(BinaryIO, stack.enter_context(CompressedInputStream(raw, "zstd")))
    return raw


def _open_member(archive: zipfile.ZipFile, path: Path) -> Any:
    member = _member(archive, path)
    if member.flag_bits & 1:
        raise UserError(
            f"expected a .zip without a password, got {printable(path.name)} with one; decompress it first."
        )
    try:
        return archive.open(member)
    except NotImplementedError as error:
        raise UserError(
            f"{printable(path.name)} uses an unsupported compression method ({error}); decompress it first."
        ) from None


def _member(archive: zipfile.ZipFile, path: Path) -> zipfile.ZipInfo:
    # macOS adds files of its own.
    members = [
        member
        for member in archive.infolist()
        if not member.is_dir() and not member.filename.startswith("__MACOSX/")
    ]  # fmt: skip
    if len(members) != 1:
        names = ", ".join(printable(member.filename) for member in members[:3])
        shown = f"{len(members)} ({names}{', ...' if len(members) > 3 else ''})" if members else "none"
        raise UserError(
            f"expected one file in {printable(path.name)}, got {shown}; decompress it, or compress only one file."
        )
    return members[0]


def packed_suffix(path: Path) -> str:
    """Return `suffix`, or for a .zip whose name has no other suffix, that of the file in it."""
    found = suffix(path)
    if found or path.suffix.lower() != ".zip":
        return found
    with open_packed(path), zipfile.ZipFile(path) as archive:
        return Path(_member(archive, path).filename).suffix.lower()


class DocumentText(NamedTuple):
    """The text of a file.

    Attributes:
        text: The text, without a byte order mark.
        encoding: The encoding that "auto" found; empty for UTF-8, and with any other `encoding`.
        extracted_from: The kind of file, such as ".pdf", whose text this is; empty for a text or an HTML page.
    """

    text: str
    encoding: str = ""
    extracted_from: str = ""


def read_document(path: Path, encoding: str, likely: str = "") -> DocumentText:
    """Text of a file, decompressed; of an HTML page, the text it shows; of a Word or PDF file and the like, its text.

    Args:
        path: The file.
        encoding: Its encoding, or "auto".
        likely: That of the files next to it, as for `find_encoding`.

    Raises:
        NotText: See `text_of`.
        UserError: See `open_packed`; or a compressed file contains more than `LARGEST_DOCUMENT` bytes.
    """
    name = printable(path.name)
    content = bytearray()
    with open_packed(path) as stream:
        while chunk := stream.read(_CHUNK):
            content += chunk
            if path.suffix.lower() in COMPRESSED and len(content) > LARGEST_DOCUMENT:
                raise UserError(
                    f"expected at most {LARGEST_DOCUMENT:,} bytes in a compressed document, got more in {name}; "
                    "decompress it, and split it into several files."
                )
    return text_of(bytes(content), packed_suffix(path), encoding, likely, name)


def text_of(content: bytes, suffix: str, encoding: str, likely: str = "", name: str = "a page") -> DocumentText:
    """Text of the content of a file.

    Args:
        content: The file.
        suffix: The suffix of its name, in lower case; "" if it has none.
        encoding: Its encoding if it is text, or "auto".
        likely: That of the files next to it, as for `find_encoding`.
        name: Its name in messages.

    Raises:
        NotText: It is not text in the encoding, or a document that cannot be read.
    """
    if needs_reader(content, suffix):
        return DocumentText(document_text(content, suffix), extracted_from=suffix or "document")
    # Programs save HTML as .doc or .xls, too.
    is_page = suffix in HTML or (suffix in NEEDS and _PAGE.match(content) is not None)
    if suffix in NEEDS and content and not is_page:
        raise NotText(None, f"damaged (not a {suffix} file)")
    text, found = decode(content, encoding, likely)
    return DocumentText(html_text(text, name) if is_page else text, found)


def check_text(path: Path, encoding: str) -> None:
    """Raise UserError for a file whose first bytes say that it is no text, or text in another encoding."""
    with open_packed(path) as stream:
        head = stream.read(32)
    name, suffix = printable(path.name), packed_suffix(path)
    if kind := binary_kind(head) or (f"a {suffix} file" if suffix in NEEDS else ""):
        raise UserError(f"expected text in {name}, got {kind}; save its content as text, such as csv.")
    found = mark_of(head)
    if found in ("utf-16", "utf-32") and encoding != AUTO and not codecs.lookup(encoding).name.startswith(found):
        raise UserError(
            f"expected {encoding_name(encoding)} in {name}, got {found.upper()} by its byte order mark; set "
            f"data.encoding={found}, or save the file as UTF-8."
        )


def encoding_of(path: Path, encoding: str) -> str:
    """Return the encoding, or the one found if it is "auto".

    Raises:
        UserError: None was found; or see `open_packed`.
    """
    if encoding != AUTO:
        return encoding
    found = find_encoding(lambda: open_packed(path))
    if found is None:
        raise UserError(
            f"expected text in one encoding in {printable(path.name)}, got what is in none that data.encoding=auto "
            "knows; set data.encoding to its name, or save the file as UTF-8."
        )
    return found
