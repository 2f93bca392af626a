"""Where results go: standard output, as text or as JSON, and nothing else with them."""

import argparse
import contextlib
import io
import shutil
import sys
from collections.abc import Iterator
from typing import Any, TextIO

from longspan.machine.printing import json_text, printable_lines


def width(out: TextIO) -> int:
    """Characters in a line of lists and pages: at most 100, and no more than a terminal shows."""
    from longspan.report.wrapping import WIDTH

    return min(WIDTH, shutil.get_terminal_size().columns) if out.isatty() else WIDTH


def emit(args: argparse.Namespace, out: TextIO, result: Any, text: str) -> None:
    """Write a result: `text`, or with --json the JSON of `result`."""
    out.write((json_text(result, indent=2) if args.json else printable_lines(text)) + "\n")


@contextlib.contextmanager
def stdout_for_results() -> Iterator[TextIO]:
    """Yield standard output, and redirect all other prints to standard error meanwhile."""
    out = sys.stdout
    if isinstance(out, io.TextIOWrapper):
        # File names need not be Unicode; what is not becomes an escape, which JSON reads.
        out.reconfigure(errors="backslashreplace")
    with contextlib.redirect_stdout(sys.stderr):
        yield out
