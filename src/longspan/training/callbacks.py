"""Callbacks of a training run: progress, memory, signals."""

import ctypes
import signal
import sys
import threading
import time
from collections.abc import Mapping
from types import FrameType
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import ProgressCallback

from longspan.training import processes
from longspan.training.base import LongspanTrainer


class TokensPerSecond(ProgressCallback):
    """The `Trainer`'s progress bar with real tokens per second (without padding) and the last loss.

    Args:
        scores: the validation scores to print after each evaluation, with their names in the output.
    """

    def __init__(self, scores: Mapping[str, str]) -> None:
        super().__init__()
        self.scores = scores
        self.trainer: LongspanTrainer | None = None
        self.started = 0.0
        self.loss = ""

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        if self.training_bar is not None:
            self.training_bar.set_description("Training")

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        super().on_step_end(args, state, control, **kwargs)
        if self.training_bar is not None and self.trainer is not None:
            # All processes have about the same number of tokens.
            rate = tokens_per_second(self.trainer, self.started) * processes.count()
            self.training_bar.set_postfix_str(f"{rate:,.0f} tokens/s{self.loss}", refresh=False)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.loss = f", loss {logs['loss']:.3f}"
        if logs and "eval_runtime" in logs and self.training_bar is not None:
            told = [f"{words} {logs[f'eval_{name}']:.4f}" for name, words in self.scores.items()]
            self.training_bar.write(f"epoch {state.epoch:.2f}: validation {', '.join(told)}", file=sys.stderr)


class ReturnFreedMemory(TrainerCallback):
    """Return freed memory to the system periodically, where the C library would keep it (glibc, on a CPU).

    Batches of different shapes leave holes between blocks in use that later tensors do not fit, and the holes keep
    growing in number otherwise.
    """

    EVERY = 25

    def __init__(self) -> None:
        library = ctypes.CDLL(None) if sys.platform == "linux" else None
        self.trim = getattr(library, "malloc_trim", None)
        self.steps = 0

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.steps += 1
        if self.trim is not None and self.steps % self.EVERY == 0:
            self.trim(0)

    on_prediction_step = on_step_end


class StopOnSignal(TrainerCallback):
    """On ctrl-C or SIGTERM, finish the step, save a checkpoint and stop; a second ctrl-C stops at once.

    All processes stop after the same step, even if the signal has reached only some of them.
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
        if self.signal:
            raise KeyboardInterrupt
        self.signal = number

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


def tokens_per_second(trainer: LongspanTrainer, started: float) -> float:
    """Return real tokens per second of training in this process since `started`, without evaluations and saves."""
    return trainer.real_tokens / max(1e-9, time.perf_counter() - started - trainer.seconds_not_training)
