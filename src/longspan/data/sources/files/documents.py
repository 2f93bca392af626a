"""Text of documents of other programs, such as Word and PDF files: `document_text`."""

import atexit
import contextlib
import os
import signal
import struct
import sys
import threading
from typing import IO, TYPE_CHECKING, cast

from longspan.data.sources.files.decoding import NotText
from longspan.errors import UserError
from longspan.machine.imports import is_installed

if TYPE_CHECKING:
    import subprocess

SHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods")
"""Suffixes of sheets."""

NEEDS = {
    **dict.fromkeys((".docx", ".docm", ".pptx", ".pptm", ".ppsx", ".odt", ".odp", ".eml"), ""),
    **dict.fromkeys(SHEETS, "python_calamine"),
    ".pdf": "pypdfium2",
    ".epub": "lxml",
    ".rtf": "striprtf",
    ".msg": "olefile",
}
"""Suffixes of documents whose text can be read, and the package that this needs, if any."""

INSTALL = '`pip install "longspan[documents]"`'
SECONDS = 60
"""Maximum processor time per file."""
MEMORY = 1 << 30
"""Maximum number of bytes of memory, in addition to three times the size of the file."""
LARGEST_TEXT = 100_000_000
"""Maximum number of characters of a text."""
LARGEST_PARTS = 1 << 28
"""Maximum number of bytes of the unpacked parts of a document."""
PACKED, COMPOUND, PDF, RTF = b"PK\x03\x04", b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1", b"%PDF-", b"{\\rtf"
"""First bytes of documents."""
REQUEST = struct.Struct("<QB")
"""Length of a file, and of the suffix of its name, both of which follow."""
ANSWER = struct.Struct("<Q?")
"""Length of the text that follows, and whether it is that of the file and not the reason why it has none."""
_TIMEOUT = 5 * SECONDS
"""Seconds per file, where the limit of processor time does not end it."""


def lacks_package(suffix: str) -> bool:
    """Whether documents with this suffix are not read because their package is not installed."""
    return bool(NEEDS.get(suffix)) and not is_installed(NEEDS[suffix])


def readers() -> str:
    """Names and versions of the packages that read documents; others may give other texts."""
    from importlib import metadata

    packages = sorted({package for package in NEEDS.values() if package and is_installed(package)})
    return " ".join(f"{package} {metadata.version(package)}" for package in packages)


def needs_reader(content: bytes, suffix: str) -> bool:
    """Whether a file is a document of another program, by its first bytes, or mail, by its suffix."""
    late = suffix == ".pdf" and PDF in content[:1024]
    return late or suffix == ".eml" or content.startswith((PACKED, COMPOUND, PDF, RTF))


def document_text(content: bytes, suffix: str) -> str:
    """Text of a document, read in another process with limited time and memory.

    Args:
        content: The file.
        suffix: The suffix of its name, in lower case.

    Raises:
        NotText: It cannot be read.
    """
    if lacks_package(suffix):
        raise NotText(None, f"not read ({INSTALL} reads {suffix} files)")
    return _process.text(content, suffix)


class _Process:
    """The process that reads documents, which is started when it is needed and replaced when it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def text(self, content: bytes, suffix: str) -> str:
        with self._lock:
            process = self._process = self._process or _start()
            timer = threading.Timer(_TIMEOUT, process.kill)
            timer.start()
            try:
                good, text = _ask(process, content, suffix)
            except (EOFError, OSError):
                slow = timer.finished.is_set()
                self._process = None
                raise _death(process, slow) from None
            except BaseException:
                # The answer to an interrupted question is not that to the next one.
                self.close()
                raise
            finally:
                timer.cancel()
        if not good:
            raise NotText(None, text)
        return text

    def close(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            _end(process)


def _start() -> "subprocess.Popen[bytes]":
    # Slow to import, and `longspan --help` imports this module.
    import subprocess

    # Modules are those of this process, and none of the current folder.
    paths = os.pathsep.join(path for path in sys.path if path)
    command = [sys.executable, "-P", "-m", "longspan.data.sources.files.readers"]
    environment = {**os.environ, "PYTHONPATH": paths}
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment)


def _ask(process: "subprocess.Popen[bytes]", content: bytes, suffix: str) -> tuple[bool, str]:
    question, answer = cast(IO[bytes], process.stdin), cast(IO[bytes], process.stdout)
    name = suffix.encode()[:255]
    question.write(REQUEST.pack(len(content), len(name)) + name)
    question.write(content)
    question.flush()
    header = answer.read(ANSWER.size)
    if len(header) < ANSWER.size:
        raise EOFError
    size, good = ANSWER.unpack(header)
    text = answer.read(size)
    if len(text) < size:
        raise EOFError
    return good, text.decode()


def _end(process: "subprocess.Popen[bytes]") -> int:
    """Exit code of a process that has ended."""
    with contextlib.suppress(OSError):
        process.communicate()
    return process.wait()


def _death(process: "subprocess.Popen[bytes]", slow: bool) -> Exception:
    """Problem of a file that ended the process, or of the process."""
    code = _end(process)
    if slow or code == -getattr(signal, "SIGXCPU", 0):
        return NotText(None, f"too large (more than {SECONDS} seconds)")
    if code in (1, 2):
        return UserError(
            f"expected {sys.executable!r} to run longspan to read a document, got exit code {code}; check that it is "
            "Python with longspan."
        )
    return NotText(None, f"damaged or too large (it ended its reader, which has {MEMORY:,} bytes of memory)")


_process = _Process()
atexit.register(_process.close)
if hasattr(os, "register_at_fork"):
    # A copy of this process would read the answers to the questions of the other.
    os.register_at_fork(after_in_child=_process.__init__)  # type: ignore[misc]
