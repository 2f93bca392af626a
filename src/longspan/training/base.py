"""What all trainings share: token counts, progress, checkpoints that outlive kills and full disks."""

import contextlib
import ctypes
import json
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from safetensors import SafetensorError
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import ProgressCallback

from longspan.errors import UserError
from longspan.training import processes


class LongspanTrainer(Trainer):
    """A `Trainer` that counts real tokens and keeps the last good checkpoint when a save fails.

    Attributes:
        real_tokens: tokens trained on so far in this process, padding not counted.
        seconds_not_training: how long evaluations and saves have taken so far.
    """

    control: TrainerControl

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.real_tokens = 0
        self.seconds_not_training = 0.0

    def padding_fraction(self) -> float:
        """Return the share of padding in an epoch's training batches, from 0 to 1."""
        raise NotImplementedError

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> torch.Tensor:
        self.real_tokens += int(inputs["attention_mask"].sum())
        loss: torch.Tensor = super().training_step(model, inputs, *args, **kwargs)
        return loss

    def _run_epoch(self, *, num_update_steps_per_epoch: int, **kwargs: Any) -> None:
        if self.state.global_step >= self.state.max_steps:
            # Resumed behind the last step, in the middle of an epoch: the Trainer would take one more.
            num_update_steps_per_epoch = 0
            if any(row["step"] == self.state.global_step and "eval_loss" in row for row in self.state.log_history):
                self.control.should_training_stop = True
                return
        super()._run_epoch(num_update_steps_per_epoch=num_update_steps_per_epoch, **kwargs)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        with self.not_training():
            scores: dict[str, float] = super().evaluate(*args, **kwargs)
        return scores

    @contextlib.contextmanager
    def not_training(self) -> Iterator[None]:
        """Leave the time meanwhile out of tokens per second."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds_not_training += time.perf_counter() - start

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        try:
            with self.not_training():
                super()._save_checkpoint(model, trial)
        except (OSError, RuntimeError, SafetensorError) as error:
            # torch and safetensors report a full disk as errors of their own.
            folder = Path(self.args.output_dir)
            if self.args.should_save:
                shutil.rmtree(folder / f"checkpoint-{self.state.global_step}", ignore_errors=True)
            kept = last_checkpoint(folder, tidy=self.args.should_save)
            raise UserError(
                f"expected to save a checkpoint at step {self.state.global_step}, but writing failed ({error}); "
                + (f"{kept.name} is kept: " if kept else "no earlier checkpoint exists: ")
                + "free some space, then run the same command with --resume."
            ) from error


class TokensPerSecond(ProgressCallback):
    """The `Trainer`'s progress bar with real tokens per second (padding not counted) and the last loss.

    Args:
        scores: the validation scores to print after each evaluation, and what to call them.
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
            # Each process has about as many as any other.
            rate = tokens_per_second(self.trainer, self.started) * processes.count()
            self.training_bar.set_postfix_str(f"{rate:,.0f} tokens/s{self.loss}", refresh=False)

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if logs and "loss" in logs:
            self.loss = f", loss {logs['loss']:.3f}"
        if logs and "eval_loss" in logs and self.training_bar is not None:
            words = {"loss": "loss", **self.scores}
            told = [f"{words[key]} {logs[f'eval_{key}']:.4f}" for key in words if f"eval_{key}" in logs]
            self.training_bar.write(f"epoch {state.epoch:.2f}: validation {', '.join(told)}", file=sys.stderr)


class ReturnFreedMemory(TrainerCallback):
    """Give freed memory back to the system now and then, where the C library would keep it (glibc, on a CPU).

    Batches of other shapes leave holes between the blocks in use that later tensors do not fit, which otherwise only
    grow in number.
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

    Of several processes, all stop after the same step, whichever of them the signal has reached by then.
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
            # numbers and might choose a best model that an uninterrupted run never sees. After an epoch's last step
            # it must take place, as the resumed run begins with the next epoch.
            control.should_evaluate = False
            control.should_save = False


def tokens_per_second(trainer: LongspanTrainer, started: float) -> float:
    """Return real tokens this process trained on per second since `started`, evaluations and saves not counted."""
    return trainer.real_tokens / max(1e-9, time.perf_counter() - started - trainer.seconds_not_training)


def last_checkpoint(folder: Path, *, tidy: bool = True) -> Path | None:
    """Return the newest complete checkpoint in `folder`; `tidy` removes what a killed save left behind."""
    complete = []
    for path in folder.glob("checkpoint-*"):
        try:
            # The Trainer writes this file last.
            complete.append((json.loads((path / "trainer_state.json").read_text())["global_step"], path))
        except (OSError, ValueError, KeyError):
            if tidy:
                shutil.rmtree(path, ignore_errors=True)
    return max(complete)[1] if complete else None
