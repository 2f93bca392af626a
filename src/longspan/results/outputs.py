"""Files that longspan writes: each whole or not at all, and never through a link that somebody else left.

A run folder may come from a stranger. A link in it in place of a file, such as `evaluation/metrics.json`, must not lead
a verb to overwrite what it points to. So each file is written next to its place, under a name that does not exist, and
then renamed, which replaces a link instead of following it. Folders below the one that the user named must be folders.
"""

import contextlib
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from longspan.errors import UserError


def check_file(path: Path, *suffixes: str) -> None:
    """Raise UserError unless the path ends in one of these, and its folder is there."""
    if path.suffix not in suffixes:
        raise UserError(f"expected a file that ends in {', '.join(suffixes)}, got {str(path)!r}; rename it.")
    if not path.parent.is_dir():
        raise UserError(f"expected a folder at {str(path.parent)!r} to write {path.name!r} to, got none; make it.")


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield the path of an empty new file next to `path`, with the same suffix, which takes its place at the end.

    After an error, `path` is as it was, and the new file is gone.

    Raises:
        UserError: `path` is a folder.
    """
    if path.is_dir() and not path.is_symlink():
        raise UserError(f"expected a file or nothing at {str(path)!r}, got a folder; move it away.")
    fresh = path.with_name(f".{path.stem}-{secrets.token_hex(8)}{path.suffix}")
    # It must not exist, not even as a link.
    os.close(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o666))
    try:
        yield fresh
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file in UTF-8 in place of `path`."""
    with replacing(path) as fresh:
        fresh.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file, indented, in place of `path`."""
    write_text(path, json.dumps(content, indent=2, ensure_ascii=False) + "\n")


def json_object(path: Path) -> dict[str, Any]:
    """Object in a JSON file. Raises UserError if there is none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise UserError(f"expected a JSON object in {str(path)!r}, got a damaged file; restore it.")
    return values


@contextlib.contextmanager
def new_file(path: Path, *, binary: bool = False) -> Iterator[IO[Any]]:
    """Yield an empty file that takes the place of `path` at the end (`replacing`): UTF-8 text, unless `binary`."""
    encoding, newline = (None, None) if binary else ("utf-8", "\n")
    with replacing(path) as fresh, fresh.open("wb" if binary else "w", encoding=encoding, newline=newline) as file:
        yield file


def write_json_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> int:
    """Write a JSON object per line in place of `path`, one at a time, and return how many there were."""
    number = 0
    with new_file(path) as file:
        for row in rows:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")
            number += 1
    return number


def append_line(path: Path, line: str) -> int:
    """Append a line to a UTF-8 file, whole or not at all, and return how many there are; several processes may do so.

    Raises:
        UserError: It is a link or no file, or the disk is full.
    """
    import fcntl

    # Closing it ends the lock.
    with open_to_append(path) as opened:
        fcntl.flock(opened, fcntl.LOCK_EX)
        size = opened.seek(0, os.SEEK_END)
        content = f"{line}\n".encode()
        if opened.write(content) != len(content):
            opened.truncate(size)
            raise UserError(f"no space left on the device for {str(path)!r}; free some.")
        opened.seek(0)
        return sum(part.count(b"\n") for part in iter(lambda: opened.read(1 << 20), b""))


def open_to_append(path: Path) -> IO[bytes]:
    """Open a file of which what is there stays, or a new one, to write at its end.

    Raises:
        UserError: It is a link or no file.
    """
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0), 0o666)
    except OSError as error:
        raise UserError(f"expected a file to append to at {str(path)!r}, got an error ({error.strerror}).") from None
    return os.fdopen(file, "rb+", buffering=0)


def write_new(path: Path, content: bytes) -> None:
    """Write a file unless it is there: its name says what is in it."""
    if not path.is_file():
        with new_file(path, binary=True) as file:
            file.write(content)


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write a compressed .npz file, without pickles, in place of `path`."""
    import numpy as np

    with replacing(path) as fresh, fresh.open("wb") as file:
        np.savez_compressed(file, allow_pickle=False, **arrays)


def folder_in(root: Path, *names: str) -> Path:
    """Return the folder `root/NAME/...`, made if it is missing. Links that lead to `root` are the user's own.

    Raises:
        UserError: One of `names` is there, as a link or as something other than a folder.
    """
    folder = root
    for name in names:
        folder = folder / name
        with contextlib.suppress(FileExistsError):
            folder.mkdir()
        if folder.is_symlink() or not folder.is_dir():
            what = "a link" if folder.is_symlink() else "a file"
            raise UserError(f"expected a folder to write to at {str(folder)!r}, got {what}; remove it.")
    return folder
