"""Files to read: found or missing, regular, unpacked, in their encoding; whatever is wrong is one sentence."""

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

PACKED = {".gz": "gzip", ".xz": "xz", ".zst": "zstd", ".zip": "zip"}
"""The suffixes of packed files, and what the formats are called."""

LONGEST_LINE = 1 << 30
"""Characters in a line; so that a small packed file cannot fill the memory."""

LARGEST_DOCUMENT = 1 << 31
"""Bytes of a packed document, for the same reason."""

_CHUNK = 1 << 20
_BOM = "\ufeff"
_BROKEN_BYTES = "longspan.broken"


def _mark(error: UnicodeError) -> tuple[str, int]:
    """Decode what cannot be decoded to a lone surrogate, so that reading goes on and the row can be named."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    return "\udcff", error.end


codecs.register_error(_BROKEN_BYTES, _mark)


class NotText(ValueError):
    """A document that is not text in its encoding.

    Args:
        byte: The place of the first byte that is not, from 0.
    """

    def __init__(self, byte: int) -> None:
        super().__init__(f"byte {byte}")
        self.byte = byte


def check_encoding(name: str) -> None:
    """Raise UserError unless there is an encoding of text called `name`."""
    try:
        codecs.lookup(name)
        "".encode(name)
    except (LookupError, ValueError):
        known = [alias.replace("_", "-") for pair in encodings.aliases.aliases.items() for alias in pair]
        hint = nearest(name.lower(), known) or "name one such as utf-8, utf-16, latin-1 or cp1252."
        raise UserError(f"data.encoding must be the name of a text encoding, but is {name!r}: {hint}") from None


def spell(encoding: str) -> str:
    """Return the name of an encoding as messages have it."""
    return "UTF-8" if codecs.lookup(encoding).name == "utf-8" else encoding


def broken(encoding: str) -> str:
    """Return what is wrong with rows that are not text in the encoding."""
    return f"broken {spell(encoding)}"


def nearest(word: str, known: Sequence[str]) -> str:
    """Return `did you mean 'x'?`, or nothing if no known name is near."""
    hint = suggestion(word, known)
    return hint if hint.startswith("did") else ""


def missing(path: Path) -> str:
    """Return the message for a path that does not exist, with the nearest name in its folder if there is one."""
    try:
        siblings = [entry.name for entry in path.parent.iterdir() if entry.name != path.name]
    except OSError:
        siblings = []
    return f"there is no file or folder {str(path)!r}: {nearest(path.name, siblings) or 'check the path.'}"


def expand(path: Path | str) -> Path:
    """Return a path with the home folder for `~`, as it stands where there is no such user."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return Path(path)


def examine(path: Path, setting: str = "") -> os.stat_result:
    """Return what the file system says about a regular file or a folder, links followed.

    Args:
        path: The file or folder.
        setting: What messages begin with.

    Raises:
        UserError: It does not exist, cannot be reached, or is something else, which might never end.
    """
    begin = f"{setting}: " if setting else ""
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        if path.is_symlink():
            target = str(path.readlink())
            raise UserError(
                f"{begin}{str(path)!r} is a link to {target!r}, which does not exist: mend the link or remove it."
            ) from None
        raise UserError(f"{begin}{missing(path)}") from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UserError(
                f"{begin}{str(path)!r} is a link that leads back to itself: mend the link or remove it."
            ) from None
        raise UserError(f"{begin}expected to read {str(path)!r}, but that fails: {error.strerror}.") from None
    except ValueError as error:
        raise UserError(f"{begin}expected a path, but got {str(path)!r} ({error}): check it.") from None
    if not stat.S_ISREG(found.st_mode) and not stat.S_ISDIR(found.st_mode):
        kind = (
            "a named pipe (FIFO)"
            if stat.S_ISFIFO(found.st_mode)
            else "a socket" if stat.S_ISSOCK(found.st_mode) else "a device"
        )  # fmt: skip
        raise UserError(
            f"{begin}expected a file or a folder, but {str(path)!r} is {kind}: give a regular file, or take it out of "
            "the folder."
        )
    return found


def printable(name: str) -> str:
    """Return a name in UTF-8, also where bytes of it are in another encoding."""
    return name.encode("utf-8", "backslashreplace").decode()


def is_damaged(text: str) -> bool:
    """Say whether there are lone surrogates in a text, which stand for what could not be decoded."""
    return not text.isascii() and printable(text) != text


def suffix(path: Path) -> str:
    """Return the suffix in small letters; of a packed file, the one before .gz and the like."""
    return (path.with_suffix("") if path.suffix.lower() in PACKED else path).suffix.lower()


@contextmanager
def open_packed(path: Path) -> Iterator[BinaryIO]:
    """Open a file to read its bytes, unpacked where its name ends in .gz, .xz, .zst or .zip.

    Raises:
        UserError: It cannot be read; what is read turns out not to be packed in this way, or not to be complete; or
            there is not exactly one file in a .zip.
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
            f"expected to read {path.name}, but {str(error.filename or path)!r} fails: {error.strerror}."
        ) from None


def _incomplete(path: Path, kind: str, error: Exception) -> UserError:
    return UserError(f"{path.name} is not a complete {PACKED[kind]} file ({error}): compress it again.")


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
        raise UserError(f"{path.name} needs a password, which cannot be given: unpack it first.")
    try:
        return archive.open(member)
    except NotImplementedError as error:
        raise UserError(f"{path.name} is packed in a way that cannot be read ({error}): unpack it first.") from None


def _member(archive: zipfile.ZipFile, path: Path) -> zipfile.ZipInfo:
    # Macintosh computers add files of their own.
    members = [
        member
        for member in archive.infolist()
        if not member.is_dir() and not member.filename.startswith("__MACOSX/")
    ]  # fmt: skip
    if len(members) != 1:
        names = ", ".join(printable(member.filename) for member in members[:3])
        shown = f"{len(members)} ({names}{', ...' if len(members) > 3 else ''})" if members else "none"
        raise UserError(f"expected one file in {path.name}, but there are {shown}: unpack it, or pack one file only.")
    return members[0]


def packed_suffix(path: Path) -> str:
    """Return `suffix`; of a .zip whose name has no other, that of the file in it."""
    found = suffix(path)
    if found or path.suffix.lower() != ".zip":
        return found
    with open_packed(path), zipfile.ZipFile(path) as archive:
        return Path(_member(archive, path).filename).suffix.lower()


class _Zstandard(io.RawIOBase):
    """What a .zst file holds, one frame after the other."""

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
    """Return the whole text of a file, unpacked and without a byte order mark.

    Raises:
        NotText: It is not text in the encoding.
        UserError: See `open_packed`; a packed file is larger than `LARGEST_DOCUMENT`.
    """
    content = bytearray()
    with open_packed(path) as stream:
        while chunk := stream.read(_CHUNK):
            content += chunk
            if path.suffix.lower() in PACKED and len(content) > LARGEST_DOCUMENT:
                raise UserError(
                    f"{path.name} unpacks to more than {LARGEST_DOCUMENT:,} bytes, which is too much for one document: "
                    "unpack it and cut it into several files."
                )
    try:
        if codecs.lookup(encoding).name == "utf-8":
            return str(content, "utf-8").removeprefix(_BOM)
        # Unlike `str`, this does not guess where a byte order mark should tell.
        return codecs.getincrementaldecoder(encoding)().decode(bytes(content), True).removeprefix(_BOM)
    except UnicodeError as error:
        raise NotText(getattr(error, "start", 0)) from None


@contextmanager
def open_text(stream: BinaryIO, name: str, encoding: str, newline: str) -> Iterator[Iterator[str]]:
    """Give the lines of a stream, without a byte order mark; in broken ones, a lone surrogate stands for the damage.

    Args:
        stream: The bytes; they are not closed.
        name: What messages call them.
        encoding: The encoding.
        newline: As for `open`: "" for any line break, "\\n" for that alone; line breaks are left as they are.

    Raises:
        UserError: A line is longer than `LONGEST_LINE`, or there is no byte order mark where one is needed.
    """
    file = io.TextIOWrapper(stream, encoding, errors=_BROKEN_BYTES, newline=newline)
    try:
        yield _lines(file, name)
    except UnicodeError as error:
        raise UserError(
            f"{name}: expected {spell(encoding)}, but got another encoding ({error}): set data.encoding to the file's."
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
                f"{name}, line {number} has {LONGEST_LINE:,} characters or more, which is too much for one row: cut it "
                "into several."
            )
        yield line.removeprefix(_BOM) if number == 1 else line
