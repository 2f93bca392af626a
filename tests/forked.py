"""Processes of their own, forked, because imports take longer than most of what they do."""

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path


def fork(work: Callable[[], int | None], told: Path) -> int:
    """Run `work` in a copy of this process, which ends with what it returns; return its number.

    What it prints is written to the file `told`. Signals mean there what they mean in a new interpreter.
    """
    child = os.fork()
    if child:
        return child
    code: int | None = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        file = os.open(told, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
        for descriptor in (1, 2):
            os.dup2(file, descriptor)
        sys.stdout, sys.stderr = (open(number, "w", closefd=False) for number in (1, 2))  # noqa: SIM115
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


def ended(child: int) -> int:
    """Wait for a process that was forked; return its exit code, or the signal that ended it as a negative number."""
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except BaseException:
        # The test took too long, or was interrupted; torchrun ends its workers then.
        os.kill(child, signal.SIGTERM)
        raise
