"""Scripts that `torchrun` starts in several processes."""

import os
import subprocess
import sys
from pathlib import Path

_RUNS = f"""\
import sys
import torch.distributed.run
import longspan.cli, longspan.sklearn, transformers.trainer
sys.path.append({str(Path(__file__).parents[1])!r})
import small_figures
small_figures.install()
torch.distributed.run.main(sys.argv[1:])
"""


def in_two_processes(script: Path, *arguments: str, count: int = 2) -> subprocess.CompletedProcess[str]:
    """Run a script in two processes, or `count`; its `stdout` has what they print, errors included.

    Workers are forked from an interpreter that has imported everything and done nothing. Importing anew takes longer
    than what they do, and a fork of the process of the tests inherits whatever their libraries and threads left there.
    """
    options = ["--standalone", "--nproc-per-node", str(count), "--start-method", "fork", "--run-path", str(script)]
    return subprocess.run(
        [sys.executable, "-c", _RUNS, *options, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
        env={**os.environ, "TOKENIZERS_PARALLELISM": "false"},
    )
