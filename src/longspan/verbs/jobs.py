"""Processes of a comparison: one after the other, several at once, or handed to a scheduler: `Launcher`."""

import codecs
import os
import queue
import re
import shlex
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from longspan.errors import UserError
from longspan.machine.limits import cores
from longspan.machine.printing import BARS, note, printable, shows_bars
from longspan.results.outputs import open_to_append, write_text

#: Pieces of what a process says last, in which the reason for its end is looked for; bytes of the end of a file.
_KEPT, _TAIL = 50, 8192
_ERROR = re.compile(r"[\w.]*(Error|Exception|Exit|Interrupt)\b")
#: Asks Linux for SIGINT at the end of the thread that started this process (PR_SET_PDEATHSIG), and goes on as another.
#: Shells start what runs in the background without that signal.
_BOUND = (
    "import ctypes, os, signal, sys; signal.signal(2, signal.SIG_DFL); ctypes.CDLL(None).prctl(1, 2); "
    "os.execv(sys.argv[1], sys.argv[1:])"
)
#: Seconds between looks at the files of jobs.
_LOOK = 1.0
#: A scheduler may stop a job by SIGTERM or SIGINT and start it again, so that these are no ends.
_SCRIPT = """#!/bin/sh
# A run of a comparison, for a scheduler. Started again, it goes on from its last checkpoint.
cd {here} || exit 1
if [ -e {folder}/recipe.toml ]; then set -- {resume}; fi
{command} "$@" > /dev/null 2>> {folder}.log
code=$?
case $code in 130|143) exit $code;; esac
echo $code > {folder}.ended.new && mv {folder}.ended.new {folder}.ended
exit $code
"""


class Launcher:
    """Starts modules as programs of their own, each of which fills a folder.

    Args:
        jobs: Processes at once. One shows its output. Several share the cores, and write to FOLDER.log.
        submit: Command of a scheduler, such as "sbatch --requeue", which gets the path of a script. All jobs are
            submitted, and their ends awaited, on any machine that sees the same folder. "" for none.

    Raises:
        UserError: There is not at least one job, or no such command.
    """

    def __init__(self, jobs: int = 1, submit: str = "") -> None:
        if jobs < 1:
            raise UserError(f"expected at least one job at once, got {jobs}; raise it.")
        if jobs > 1 and submit:
            raise UserError(f"expected --jobs or --submit, got {jobs} and {submit!r}; a scheduler decides itself.")
        self.jobs = jobs
        try:
            self.submit = shlex.split(submit)
        except ValueError as error:
            raise UserError(f"expected a command to submit with, got {submit!r} ({error}); mend it.") from None
        self._stopped = False
        self._running: set[subprocess.Popen[bytes]] = set()
        self._shares: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        for share in shares_of_cores(jobs):
            self._shares.put(share)

    def run_all(self, works: Sequence[Callable[[], Any]]) -> list[Any]:
        """Results of functions, in order, several at once; each may call `run`.

        Raises:
            KeyboardInterrupt: It was interrupted. Processes of this machine save a checkpoint first, and end at once
                if it is interrupted again; what a scheduler has stays there.
        """
        if self.jobs == 1 and not self.submit:
            return [work() for work in works]
        pool = ThreadPoolExecutor(max(1, len(works)) if self.submit else self.jobs)
        try:
            return list(pool.map(lambda work: work(), works))
        except KeyboardInterrupt:
            self._stopped = True
            self._interrupt()
            raise
        finally:
            while True:
                try:
                    pool.shutdown(cancel_futures=True)
                    break
                except KeyboardInterrupt:
                    self._interrupt()

    def run(self, folder: Path, module: str, *arguments: str, resume: Sequence[str] = ()) -> str | None:
        """Run a module that fills a folder; return None, or why it failed in one sentence.

        Args:
            folder: The folder.
            module: The module.
            arguments: Its arguments.
            resume: More of them where the folder has a recipe, of a run that was begun.

        Raises:
            KeyboardInterrupt: It was interrupted.
        """
        if self.submit:
            return self._submitted(folder, command_of(module, *arguments), resume)
        arguments = (*arguments, *(resume if (folder / "recipe.toml").exists() else ()))
        if self.jobs == 1:
            return run_module(module, *arguments)
        share = self._shares.get()
        try:
            return self._beside(folder, bound_command_of(module, *arguments), share)
        finally:
            self._shares.put(share)

    def is_stopped(self) -> bool:
        """Whether it was interrupted."""
        return self._stopped

    def forget(self, folder: Path) -> None:
        """Remove what is left of the job of a folder that is finished, lest it be believed once the folder is gone."""
        for name in ("job", "ended"):
            folder.with_name(f"{folder.name}.{name}").unlink(missing_ok=True)

    def _beside(self, folder: Path, command: Sequence[str], share: Sequence[int]) -> str | None:
        log = folder.with_name(f"{folder.name}.log")
        # Where there are no affinities, libraries are told how many threads to start.
        environment = {**os.environ, "OMP_NUM_THREADS": str(len(share))}
        with open_to_append(log) as file:
            began = file.seek(0, os.SEEK_END)
            process = subprocess.Popen(
                command, stdout=subprocess.DEVNULL, stderr=file, process_group=0, env=environment
            )
            self._running.add(process)
            if hasattr(os, "sched_setaffinity") and process.poll() is None:
                os.sched_setaffinity(process.pid, share)
            if self._stopped:
                self._interrupt()
            code = process.wait()
            self._running.discard(process)
        error = None if code == 0 else reason(code, tail(log, began))
        print(f"{folder}: {'done' if error is None else printable(error)}", file=sys.stderr, flush=True)
        return error

    def _interrupt(self) -> None:
        for process in list(self._running):
            process.send_signal(signal.SIGINT)

    def _submitted(self, folder: Path, command: Sequence[str], resume: Sequence[str]) -> str | None:
        script, job, ended, log = (folder.with_name(f"{folder.name}.{name}") for name in ("sh", "job", "ended", "log"))
        if self._stopped:
            raise KeyboardInterrupt
        if job.exists() and ended.exists() and not _is_of(folder, ended):
            job.unlink()
        if not job.exists():
            ended.unlink(missing_ok=True)
            parts = {"here": Path.cwd(), "folder": folder}
            text = _SCRIPT.format(
                command=shlex.join(command),
                resume=shlex.join(resume),
                **{name: shlex.quote(str(path)) for name, path in parts.items()},
            )
            write_text(script, text)
            # Before: of a call that is killed meanwhile, the scheduler may have the job.
            write_text(job, "")
            try:
                # In a session of its own, so that ctrl-C cannot end it once it has handed over the job.
                done = subprocess.run(
                    [*self.submit, str(script)],
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    text=True,
                    errors="replace",
                    start_new_session=True,
                )
            except OSError as error:
                job.unlink()
                return f"expected a command to submit with, got {self.submit[0]!r} ({error.strerror}); name another."
            if done.returncode:
                job.unlink()
                return f"{self.submit[0]} refused the job: {reason(done.returncode, done.stderr)}"
            write_text(job, done.stdout)
            note(f"{folder}: submitted{', ' if done.stdout.strip() else ''}{' '.join(done.stdout.split())}")
        else:
            note(f"{folder}: waits for the job that was submitted before; delete {job} to submit it again")
        while not ended.exists():
            if self._stopped:
                raise KeyboardInterrupt
            time.sleep(_LOOK)
        code = int(ended.read_text(encoding="utf-8"))
        job.unlink()
        return None if code == 0 else reason(code, tail(log))


def _is_of(folder: Path, ended: Path) -> bool:
    """Whether the end of a job is that of what is in its folder now, which may have been deleted since."""
    return folder.exists() and (int(ended.read_text(encoding="utf-8")) != 0 or (folder / "metrics.json").exists())


def shares_of_cores(jobs: int) -> list[list[int]]:
    """Numbers of the cores of each of several processes, as many for each; more processes than cores share them."""
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    each = max(1, cores() // jobs)
    return [[allowed[(number * each + place) % len(allowed)] for place in range(each)] for number in range(jobs)]


def command_of(module: str, *arguments: str) -> list[str]:
    """Command that runs a module as a program."""
    return [sys.executable, "-P", "-m", module, *arguments]


def bound_command_of(module: str, *arguments: str) -> list[str]:
    """Command that runs a module as a program which is interrupted when whoever started it ends, even if killed."""
    if not sys.platform.startswith("linux"):
        return command_of(module, *arguments)
    return [sys.executable, "-P", "-c", _BOUND, *command_of(module, *arguments)]


def tail(path: Path, start: int = 0) -> str:
    """End of a file, from a place in it at the earliest."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(start, size - _TAIL))
        return file.read().decode("utf-8", "replace")


def run_module(module: str, *arguments: str) -> str | None:
    """Run a module as a program and show its output; return None, or why it failed in one sentence.

    Raises:
        KeyboardInterrupt: It was interrupted.
    """
    command = bound_command_of(module, *arguments)
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
