"""Python code in a process of its own, which has imported torch and transformers, and nothing of longspan.

Each is forked from an interpreter that waits: these imports take longer than most of what the code does.
"""

import atexit
import json
import subprocess
import sys
import tempfile
from pathlib import Path

_WAITS = """\
import gc, json, os, sys
import torch, transformers.pipelines
assert "longspan" not in sys.modules
gc.freeze()
for line in sys.stdin:
    code, folder, *told = json.loads(line)
    child = os.fork()
    if not child:
        os.chdir(folder)
        for number, file in enumerate([os.devnull, *told]):
            os.dup2(os.open(file, os.O_RDWR), number)
        sys.stdin = open(0, closefd=False)
        exec(code, {"__name__": "__main__"})
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""

_waiting: subprocess.Popen[str] | None = None


def printed(code: str, folder: Path | None = None) -> str:
    """Return what Python prints for `code`, run in `folder`; it must end without an error."""
    global _waiting
    if _waiting is None:
        _waiting = subprocess.Popen(
            [sys.executable, "-c", _WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
    assert _waiting.stdin is not None
    assert _waiting.stdout is not None
    with tempfile.NamedTemporaryFile("r") as out, tempfile.NamedTemporaryFile("r") as errors:
        try:
            _waiting.stdin.write(json.dumps([code, str(folder or Path.cwd()), out.name, errors.name]) + "\n")
            _waiting.stdin.flush()
            ended = _waiting.stdout.readline()
        except BaseException:
            # The test took too long, or was interrupted: what comes would be another test's answer.
            _end()
            raise
        assert ended == "0\n", errors.read()
        return out.read()


@atexit.register
def _end() -> None:
    global _waiting
    if _waiting is not None:
        _waiting.kill()
        # Waits for it, and closes the pipes.
        _waiting.communicate()
        _waiting = None
