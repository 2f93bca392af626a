"""Folders that one process at a time writes to: `lock_folder`."""

import contextlib
import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from longspan.errors import UserError
from longspan.machine.printing import note

FILE = ".lock"
"""Name of the file in the folder that is locked. The system frees it when the process ends, however it ends."""


@contextlib.contextmanager
def lock_folder(folder: Path, what: str) -> Iterator[None]:
    """Keep other processes and threads from holding the same folder for the duration of the `with` block.

    Args:
        folder: A folder that exists. While it is held, a file `FILE` in it says by whom.
        what: Work of the holder, such as "a training run".

    Raises:
        UserError: Another process holds it; the message names the process and when it started.
    """
    path = folder / FILE
    _refuse_link(path)
    # Not shared between threads, nor between two calls in one.
    lock = FileLock(path, timeout=0)
    # Before: some releases of filelock empty the file of a lock that they cannot get.
    holder = _holder(path)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(
            f"expected {str(folder)!r} for {what}, got another one at work there{holder or _holder(path)}; wait for "
            "it, or name another folder."
        ) from None
    try:
        _sign(path)
        yield
    finally:
        # While it is locked: whoever opened it before finds out that it is gone, and makes a new one.
        path.unlink(missing_ok=True)
        lock.release()


def wait_until_free(folder: Path, what: str, stopped: Callable[[], bool]) -> None:
    """Return once no other process holds a folder; a note says who does.

    Args:
        folder: The folder.
        what: As for `lock_folder`.
        stopped: Whether to wait no longer, for threads that ctrl-C does not reach.

    Raises:
        UserError: A link is in place of the lock.
        KeyboardInterrupt: It was stopped.
    """
    waits = False
    while folder.is_dir():
        if stopped():
            raise KeyboardInterrupt
        _refuse_link(folder / FILE)
        try:
            with lock_folder(folder, what):
                return
        except UserError:
            if not waits:
                note(f"{folder}: waits for another process that is at work there{_holder(folder / FILE)}")
            waits = True
            time.sleep(1)


def _refuse_link(path: Path) -> None:
    if path.is_symlink():
        raise UserError(f"expected a file or nothing at {str(path)!r}, got a link; remove it.")


def _sign(path: Path) -> None:
    """Write into the file of a lock who has it."""
    text = json.dumps({"process": os.getpid(), "started": time.strftime("%Y-%m-%d %H:%M:%S")})
    descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def _holder(path: Path) -> str:
    """Return who has a lock, in parentheses; nothing in the moment before it is written."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        return f" (process {int(found['process'])}, started {str(found['started'])[:19]})"
    except (OSError, ValueError, KeyError, TypeError):
        return ""
