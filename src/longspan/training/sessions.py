"""What a training run has taken so far, in all of its sessions: `Sessions`."""

import time
from collections.abc import Callable
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import ExportableState

from longspan.training import processes


class Sessions(TrainerCallback, ExportableState):
    """Adds up what all sessions of a run took, from its start over each time that it was resumed.

    The sums are saved with each checkpoint and restored from it. What a session did after its last checkpoint thus
    counts no more than the steps that are lost with it.

    Attributes:
        tokens: Real tokens trained on in all processes, as of the last `count`, like all of these.
        training_seconds: Seconds of training, without evaluating and saving.
        seconds: Seconds from start to end.
        peak_memory_bytes: The largest of any session.
        began: When this session started, by `time.perf_counter`.
        peak_memory: Returns the largest memory use of this session so far in bytes.
    """

    def __init__(self) -> None:
        self.tokens = 0
        self.training_seconds = 0.0
        self.seconds = 0.0
        self.peak_memory_bytes = 0
        self.began = time.perf_counter()
        self.peak_memory: Callable[[], int] = lambda: 0
        self._before = (0, 0.0, 0.0, 0)
        self._training_since = 0.0
        self._training_until: float | None = None

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        # What a checkpoint holds has been restored by now, and what this session takes comes on top of it.
        self._before = (self.tokens, self.training_seconds, self.seconds, self.peak_memory_bytes)
        self._training_since, self._training_until = time.perf_counter(), None

    def on_train_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self._training_until = time.perf_counter()

    def count(self, tokens: int, seconds_not_training: float) -> None:
        """Bring the sums up to date. All processes call this.

        Args:
            tokens: Real tokens that this process has trained on in this session.
            seconds_not_training: Seconds between the start and the end of training in which nothing was trained.
        """
        before_tokens, before_training, before, before_memory = self._before
        now = time.perf_counter()
        training = (self._training_until or now) - self._training_since - seconds_not_training
        self.tokens = before_tokens + round(processes.total([tokens])[0])
        self.training_seconds = before_training + training
        self.seconds = before + now - self.began
        self.peak_memory_bytes = max(before_memory, self.peak_memory())

    def tokens_per_second(self) -> float:
        """Return real tokens of all processes per second of training."""
        return self.tokens / max(1e-9, self.training_seconds)

    def state(self) -> dict[str, Any]:
        names = ("tokens", "training_seconds", "seconds", "peak_memory_bytes")
        return {"args": {}, "attributes": {name: getattr(self, name) for name in names}}
