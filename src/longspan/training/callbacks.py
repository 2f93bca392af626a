"""Callbacks of a training run: progress, memory, signals."""

import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any, TextIO

from tqdm.auto import tqdm
from transformers import TrainerCallback, TrainerControl, TrainerState

from longspan.machine.memory import return_freed
from longspan.training import processes
from longspan.training.base import LongspanTrainer
from longspan.training.stopping import improves


class TokensPerSecond(TrainerCallback):
    """A progress bar with real tokens per second (without padding), and a table of the validations.

    The bar is for terminals; log files have the table alone.

    Args:
        scores: the validation scores to show after each evaluation, with their names in the output.
        best: the score that tells which evaluation is best.
        higher_is_better: whether higher is better there.
    """

    def __init__(self, scores: Mapping[str, str], best: str, higher_is_better: bool) -> None:
        columns = {"epoch": "epoch", "loss": "training loss"} | {f"eval_{name}": word for name, word in scores.items()}
        self.table = EpochTable(columns, f"eval_{best.removeprefix('eval_')}", higher_is_better, sys.stderr)
        self.trainer: LongspanTrainer | None = None
        self.bar: Any = None
        self.started = 0.0
        self._losses = Losses()

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        hidden = args.disable_tqdm or not state.is_world_process_zero
        self.bar = tqdm(
            total=state.max_steps, initial=state.global_step, desc="Training", dynamic_ncols=True, disable=hidden
        )
        for row in state.log_history:
            # Of a run that was resumed.
            self.table.improves(row)
        self._losses.step = state.global_step

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.bar is not None and self.trainer is not None:
            training = time.perf_counter() - self.started - self.trainer.seconds_not_training
            # Without padding. All processes have about the same number of tokens.
            rate = self.trainer.real_tokens / max(1e-9, training) * processes.count()
            last = "" if self._losses.last is None else f", loss {self._losses.last:.3f}"
            self.bar.total = self.trainer.expected_steps or state.max_steps
            self.bar.set_postfix_str(f"{rate:,.0f} tokens/s{last}", refresh=False)
            self.bar.update(state.global_step - self.bar.n)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self._losses.add(logs["loss"], state.global_step)
        if logs and "eval_runtime" in logs and state.is_world_process_zero:
            row = logs | {"epoch": state.epoch or 0.0, **self._losses.since_last_asked()}
            # Takes the bar away meanwhile.
            with tqdm.external_write_mode(sys.stderr):
                self.table.add(row)

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self.bar is not None:
            self.bar.close()


class Losses:
    """The mean training loss between two evaluations, from losses that are means over some steps each."""

    def __init__(self) -> None:
        self.last: float | None = None
        self.step = 0
        self._sum, self._steps = 0.0, 0

    def add(self, loss: float, step: int) -> None:
        """Take in the mean loss of the steps after the last call, up to `step`."""
        self._sum += loss * (step - self.step)
        self._steps += step - self.step
        self.last, self.step = loss, step

    def since_last_asked(self) -> dict[str, float]:
        """Return the mean as `loss`, or nothing if there were no steps."""
        mean = {"loss": self._sum / self._steps} if self._steps else {}
        self._sum, self._steps = 0.0, 0
        return mean


class ReturnFreedMemory(TrainerCallback):
    """Return freed memory to the system periodically (`machine.memory.return_freed`), for training on a CPU.

    Batches of different shapes leave holes between blocks in use that later tensors do not fit, and the holes keep
    growing in number otherwise.
    """

    EVERY = 25

    def __init__(self) -> None:
        self.steps = 0

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.steps += 1
        if self.steps % self.EVERY == 0:
            return_freed()

    on_prediction_step = on_step_end


class SaveByAge(TrainerCallback):
    """Saves a checkpoint when the last one, or the start, is some hours ago, by the clock of the first process."""

    def __init__(self, hours: float) -> None:
        self.seconds = 3600 * hours
        self._since = time.monotonic()

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._since = time.monotonic()

    on_save = on_train_begin

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        due = processes.rank() == 0 and time.monotonic() - self._since >= self.seconds
        control.should_save = bool(processes.largest(due)) or control.should_save


class StopOnSignal(TrainerCallback):
    """On ctrl-C or SIGTERM, finish the step, save a checkpoint and stop; a second ctrl-C stops at once.

    All processes stop after the same step, even if the signal has reached only some of them. Schedulers and launchers
    may each send SIGTERM: only the first one counts, so that the others do not cut the save short.
    """

    def __init__(self) -> None:
        self.signal = 0
        self._stopping = False
        self._previous: dict[int, Any] = {}

    def __enter__(self) -> "StopOnSignal":
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.signal and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.signal = self.signal or number

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._stopping = bool(processes.largest(self.signal))
        if self._stopping:
            control.should_save = True
            control.should_training_stop = True

    def on_epoch_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if self._stopping and state.epoch is not None and state.epoch % 1:
            # Stopping ends the epoch for the Trainer, but not for the run: an evaluation now would draw random
            # numbers and might choose a best model that an uninterrupted run never sees. After the last step of an
            # epoch, the evaluation is needed, as the resumed run begins with the next epoch.
            control.should_evaluate = False
            control.should_save = False


NEWEST = 10
"""How many of the newest rows a terminal shows; the best of the older ones stays above them."""
_ERASE = "\x1b[{}A\x1b[J"


class EpochTable:
    """Rows of numbers under one header; a star is before each row that was the best so far.

    A terminal shows the best and the newest rows. Once there are more than `NEWEST`, the table is drawn again in its
    place, without the columns that do not fit. Elsewhere, such as in a log file, each row is one line and stays.

    Args:
        columns: names of the columns, by their keys in the rows; the first is the epoch.
        best: the key of the column that tells which row is best.
        higher_is_better: whether higher is better there.
        out: where it is written.
    """

    def __init__(self, columns: Mapping[str, str], best: str, higher_is_better: bool, out: TextIO) -> None:
        self.columns, self.best, self.higher_is_better, self.out = dict(columns), best, higher_is_better, out
        self.widths = {key: max(len(name), 8) for key, name in columns.items()}
        self._rows: list[list[str]] = []
        self._best: dict[str, float] | None = None
        self._record_row = -1
        self._drawn = 0
        self._terminal = (0, 0)

    def improves(self, row: Mapping[str, float]) -> bool:
        """Take note of a row that is not shown, such as one before a run was resumed; return whether it is the best."""
        better = improves(row, self._best, self.best, self.higher_is_better)
        if better:
            self._best = dict(row)
        return better

    def add(self, row: Mapping[str, float]) -> None:
        """Show a row with values by column; columns without one show a dash."""
        best = self.improves(row)
        cells = [_cell(key, row.get(key)).rjust(width) for key, width in self.widths.items()]
        self._rows.append(["*" if best else " ", *cells])
        if best:
            self._record_row = len(self._rows) - 1
        if not self.out.isatty():
            self._write([*([] if self._drawn else self._header()), self._rows[-1]], None)
            self._drawn += 1
            return
        size = shutil.get_terminal_size()
        shown = self._shown()
        if not self._drawn or size != self._terminal:
            # Lines that were drawn for another size are no longer where they were.
            lines, self._drawn = [*self._header(), *shown], 0
        elif len(self._rows) <= NEWEST:
            lines = self._rows[-1:]
        else:
            self.out.write(_ERASE.format(self._drawn))
            lines, self._drawn = [*self._header(), *shown], 0
        self._terminal = (size.columns, size.lines)
        self._write(lines, size.columns)
        self._drawn += len(lines)

    def _shown(self) -> list[list[str]]:
        first = max(0, len(self._rows) - NEWEST)
        above = [self._rows[self._record_row]] if 0 <= self._record_row < first else []
        if first:
            above.append([" ", "...".rjust(self.widths["epoch"])])
        return [*above, *self._rows[first:]]

    def _header(self) -> list[list[str]]:
        names = [name.rjust(self.widths[key]) for key, name in self.columns.items()]
        return [[" ", *names], [" ", *("-" * width for width in self.widths.values())]]

    def _write(self, lines: Sequence[Sequence[str]], width: int | None) -> None:
        fitting, taken = 1, 1
        for column in self.widths.values():
            # A line that wraps would be two, and a number cut off another number.
            taken += 2 + column
            fitting += width is None or taken < width
        self.out.write("".join(f"{'  '.join(line[:fitting]).rstrip()}\n" for line in lines))
        self.out.flush()


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.2f}" if key == "epoch" else f"{value:.4f}" if abs(value) < 1e4 else f"{value:.4g}"
