"""Python code in processes of its own, forked from interpreters that wait, as imports take longer than most code."""

import atexit
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

#: Reads code, a folder and files for what it prints, line by line; answers each with an exit code.
_WAITS = """
import gc, json, os, sys
gc.collect()
gc.freeze()
for line in sys.stdin:
    code, folder, *told = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        for number, file in enumerate([os.devnull, *told]):
            os.dup2(os.open(file, os.O_RDWR | os.O_APPEND), number)
        sys.stdin = open(0, closefd=False)
        exec(code, {"__name__": "__main__"})
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Interpreter:
    """An interpreter that has run `start`, once the first code needs it.

    Args:
        start: Its imports.
    """

    def __init__(self, start: str) -> None:
        self._start = start
        self._waiting: subprocess.Popen[str] | None = None
        atexit.register(self._end)

    def run(self, code: str, folder: Path, out: str, errors: str) -> int:
        """Run `code` in a copy of it, in `folder`, with files for what it prints; return the exit code."""
        if self._waiting is None:
            self._waiting = subprocess.Popen(
                [sys.executable, "-c", self._start + _WAITS],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
            )
        assert self._waiting.stdin is not None
        assert self._waiting.stdout is not None
        try:
            self._waiting.stdin.write(json.dumps([code, str(folder), out, errors]) + "\n")
            self._waiting.stdin.flush()
            return int(self._waiting.stdout.readline())
        except BaseException:
            # The test took too long, or was interrupted: what comes would be another test's answer.
            self._end()
            raise

    def _end(self) -> None:
        if self._waiting is not None:
            left = psutil.Process(self._waiting.pid).children(recursive=True)
            for process in (self._waiting, *left):
                process.kill()
            # Waits for it, and closes the pipes.
            self._waiting.communicate()
            self._waiting = None


_PLAIN = Interpreter("""
import sys, torch, transformers.pipelines
assert "longspan" not in sys.modules
""")


def printed(code: str, folder: Path | None = None) -> str:
    """Return what Python prints for `code`, run in `folder`; it must end without an error.

    It has imported torch and transformers, and nothing of longspan.
    """
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as errors:
        assert _PLAIN.run(code, folder or Path.cwd(), out.name, errors.name) == 0, errors.read()
        return out.read()
