"""Running a module of longspan in a process of its own: `run`."""

import codecs
import os
import re
import signal
import subprocess
import sys
from collections import deque

from longspan.machine.printing import BARS, printable, shows_bars

_KEPT = 50
"""Pieces of what a process says last, in which the reason for its end is looked for."""
_ERROR = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt)\b")


def run(module: str, *arguments: str) -> str | None:
    """Run a module as a program and show its output; return None, or why it failed in one sentence.

    Raises:
        KeyboardInterrupt: It was interrupted.
    """
    command = [sys.executable, "-P", "-m", module, *arguments]
    last: deque[str] = deque(maxlen=_KEPT)
    # A character may begin in one piece and end in the next.
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    # In its own process group, so that one ctrl-C reaches it once: it saves a checkpoint, a second one kills it.
    environment = {**os.environ, BARS: "1"} if shows_bars() else None
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, process_group=0, env=environment
    ) as process:
        assert process.stderr is not None
        interrupted = False
        while True:
            try:
                # Not a line, as a progress bar has none.
                piece = os.read(process.stderr.fileno(), 65536)
            except KeyboardInterrupt:
                interrupted = True
                process.send_signal(signal.SIGINT)
                continue
            if not piece:
                break
            last.append(decoder.decode(piece))
            sys.stderr.write(last[-1])
            sys.stderr.flush()
    if interrupted or process.returncode == 130:
        raise KeyboardInterrupt
    return None if process.returncode == 0 else reason(process.returncode, "".join(last))


def reason(code: int, said: str) -> str:
    """Return in one sentence why a process failed.

    Args:
        code: Its exit code; negative if a signal ended it.
        said: The end of what it said on standard error.
    """
    if code < 0:
        name = signal.Signals(-code).name if -code in set(signal.Signals) else "unknown"
        why = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        return f"the process was killed by signal {-code} ({name}){why}."
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if code == 2 and (told := [line for line in lines if line.startswith("longspan: ")]):
        return told[-1].removeprefix("longspan: ")
    # The last line of a traceback, which others may follow.
    errors = [line for line in lines if _ERROR.match(line)]
    told = errors or lines
    return f"the process ended with code {code}{f': {printable(told[-1])}' if told else ''}"
