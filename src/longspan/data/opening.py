"""Opening files: finding, decompressing and decoding them, with one sentence for whatever goes wrong."""

import codecs
import encodings.aliases
import errno
import gzip
import io
import lzma
import os
import stat
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from longspan.errors import UserError, suggestion

COMPRESSED = {".gz": "gzip", ".xz": "xz", ".zst": "zstd", ".zip": "zip"}
"""Suffixes of compressed files, and the names of their formats."""

LONGEST_LINE = 1 << 30
"""Maximum number of characters in a line, so that a small compressed file cannot fill the memory."""

LARGEST_DOCUMENT = 1 << 31
"""Maximum number of bytes in a compressed document, for the same reason."""

_CHUNK = 1 << 20
_BOM = "\ufeff"
_BROKEN_BYTES = "longspan.broken"


def _mark(error: UnicodeError) -> tuple[str, int]:
    """Replace undecodable bytes by a lone surrogate, so that reading continues and the row can be reported."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\udcff", error.end


codecs.register_error(_BROKEN_BYTES, _mark)


class NotText(ValueError):
    """A document that is not text in its encoding.

    Args:
        byte: The position of the first invalid byte, from 0.
    """

    def __init__(self, byte: int) -> None:
        super().__init__(f"byte {byte}")
        self.byte = byte


def check_encoding(name: str) -> None:
    """Raise UserError unless `name` is the name of a text encoding."""
    try:
        codecs.lookup(name)
        "".encode(name)
    except (LookupError, ValueError):
        known = [alias.replace("_", "-") for pair in encodings.aliases.aliases.items() for alias in pair]
        hint = nearest(name.lower(), known) or "try utf-8, utf-16, latin-1 or cp1252."
        raise UserError(f"data.encoding must be the name of a text encoding, got {name!r}; {hint}") from None


def encoding_name(encoding: str) -> str:
    """Return the name of an encoding as messages show it."""
    return "UTF-8" if codecs.lookup(encoding).name == "utf-8" else encoding


def broken(encoding: str) -> str:
    """Return the problem of rows that are not text in the encoding."""
    return f"broken {encoding_name(encoding)}"


def nearest(word: str, known: Sequence[str]) -> str:
    """Return `did you mean 'x'?`, or nothing if no known name is similar."""
    hint = suggestion(word, known)
    return hint if hint.startswith("did") else ""


def missing(path: Path) -> str:
    """Return the message for a path that does not exist, with the most similar name in its folder, if any."""
    try:
        siblings = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]
    except OSError:
        siblings = []
    return f"there is no file or folder {str(path)!r}; {nearest(path.name, siblings) or 'check the path.'}"


def expand(path: Path | str) -> Path:
    """Return a path with `~` expanded to the home folder, or unchanged if there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def examine(path: Path, setting: str = "") -> os.stat_result:
    """Return what the file system says about a regular file or a folder, links followed.

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
        raise UserError(f"{begin}expected a path, got {str(path)!r} ({error}); check it.") from None
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


def printable(name: str) -> str:
    """Return a name as valid UTF-8, with bytes in other encodings escaped."""
    return name.encode("utf-8", "backslashreplace").decode()


def is_damaged(text: str) -> bool:
    """Return whether a text contains lone surrogates, which mark undecodable bytes."""
    return not text.isascii() and printable(text) != text


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
    kind = path.suffix.lower()
    try:
        with ExitStack() as stack:
            yield _open(path, kind, stack)
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError, zipfile.BadZipFile) as error:
        raise _incomplete(path, kind, error) from None
    except OSError as error:
        if error.errno is None and kind == ".zst":
            raise _incomplete(path, kind, error) from None
        if error.filename is None and error.errno is None:
            raise
        raise UserError(
            f"expected to read {path.name}, got an error for {str(error.filename or path)!r} ({error.strerror}); "
            "check it."
        ) from None


def _incomplete(path: Path, kind: str, error: Exception) -> UserError:
    return UserError(f"{path.name} is not a complete {COMPRESSED[kind]} file ({error}); compress it again.")


def _open(path: Path, kind: str, stack: ExitStack) -> BinaryIO:
    if kind == ".gz":
        return cast(BinaryIO, stack.enter_context(gzip.open(path)))
    if kind == ".xz":
        return cast(BinaryIO, stack.enter_context(lzma.open(path)))
    if kind == ".zip":
        return cast(BinaryIO, stack.enter_context(_open_member(stack.enter_context(zipfile.ZipFile(path)), path)))
    raw = stack.enter_context(path.open("rb"))
    if kind == ".zst":
        return cast(BinaryIO, stack.enter_context(io.BufferedReader(_Zstandard(raw), _CHUNK)))
    return raw


def _open_member(archive: zipfile.ZipFile, path: Path) -> Any:
    member = _member(archive, path)
    if member.flag_bits & 1:
        raise UserError(f"expected a .zip without a password, got {path.name} with one; decompress it first.")
    try:
        return archive.open(member)
    except NotImplementedError as error:
        raise UserError(f"{path.name} uses an unsupported compression method ({error}); decompress it first.") from None


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
        raise UserError(f"expected one file in {path.name}, got {shown}; decompress it, or compress only one file.")
    return members[0]


def packed_suffix(path: Path) -> str:
    """Return `suffix`, or for a .zip whose name has no other suffix, that of the file in it."""
    found = suffix(path)
    if found or path.suffix.lower() != ".zip":
        return found
    with open_packed(path), zipfile.ZipFile(path) as archive:
        return Path(_member(archive, path).filename).suffix.lower()


class _Zstandard(io.RawIOBase):
    """The contents of a .zst file, frame after frame."""

    def __init__(self, raw: BinaryIO) -> None:
        from pyarrow import CompressedInputStream

        self._stream = CompressedInputStream(raw, "zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        content = self._stream.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


def read_document(path: Path, encoding: str) -> str:
    """Return the text of a file, decompressed and without its byte order mark.

    Raises:
        NotText: It is not text in the encoding.
        UserError: See `open_packed`; or a compressed file contains more than `LARGEST_DOCUMENT` bytes.
    """
    content = bytearray()
    with open_packed(path) as stream:
        while chunk := stream.read(_CHUNK):
            content += chunk
            if path.suffix.lower() in COMPRESSED and len(content) > LARGEST_DOCUMENT:
                raise UserError(
                    f"expected at most {LARGEST_DOCUMENT:,} bytes in a compressed document, got more in {path.name}; "
                    "decompress it, and split it into several files."
                )
    try:
        if codecs.lookup(encoding).name == "utf-8":
            return str(content, "utf-8").removeprefix(_BOM)
        # Unlike `str`, this requires a byte order mark where the encoding does, and does not guess.
        return codecs.getincrementaldecoder(encoding)().decode(bytes(content), True).removeprefix(_BOM)
    except UnicodeError as error:
        raise NotText(getattr(error, "start", 0)) from None


@contextmanager
def open_text(stream: BinaryIO, name: str, encoding: str, newline: str) -> Iterator[Iterator[str]]:
    """Yield the lines of a stream, without its byte order mark; a lone surrogate marks undecodable bytes.

    Args:
        stream: The bytes; the stream is left open.
        name: Its name in messages.
        encoding: Its encoding.
        newline: As for `open`: "" for any line break, "\\n" for that one only; line breaks are kept as they are.

    Raises:
        UserError: A line is longer than `LONGEST_LINE`, or a required byte order mark is missing.
    """
    file = io.TextIOWrapper(stream, encoding, errors=_BROKEN_BYTES, newline=newline)
    try:
        yield _lines(file, name)
    except UnicodeError as error:
        raise UserError(
            f"{name}: expected {encoding_name(encoding)}, got another encoding ({error}); set data.encoding "
            "to the file's encoding."
        ) from None
    finally:
        if not file.closed:
            file.detach()


def _lines(file: TextIO, name: str) -> Iterator[str]:
    number = 0
    while line := file.readline(LONGEST_LINE):
        number += 1
        if len(line) == LONGEST_LINE:
            raise UserError(
                f"expected fewer than {LONGEST_LINE:,} characters in a line, got more in {name}, line {number}; split "
                "it "
                "into several rows."
            )
        yield line.removeprefix(_BOM) if number == 1 else line
