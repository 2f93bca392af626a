"""Scripts that `torchrun` starts in several processes."""

import subprocess
import tempfile
from pathlib import Path

from interpreters import Interpreter

_LAUNCHER = Interpreter(f"""
import sys
import torch.distributed.run
import longspan.cli, longspan.sklearn, longspan.verbs.train, transformers.trainer
sys.path.append({str(Path(__file__).parents[1])!r})
import small_figures
small_figures.install()
""")


def in_two_processes(script: Path, *arguments: str, count: int = 2) -> subprocess.CompletedProcess[str]:
    """Run a script in two processes, or `count`; its `stdout` has what they print, errors included.

    Workers are forked from an interpreter that has imported everything and done nothing. Importing anew takes longer
    than what they do, and a fork of the process of the tests inherits whatever their libraries and threads left there.
    """
    options = ["--standalone", "--nproc-per-node", str(count), "--start-method", "fork", "--run-path", str(script)]
    code = f"import torch.distributed.run\ntorch.distributed.run.main({[*options, *arguments]!r})"
    with tempfile.NamedTemporaryFile("r") as out:
        ended = _LAUNCHER.run(code, Path.cwd(), out.name, out.name)
        return subprocess.CompletedProcess([str(script), *arguments], ended, out.read())
