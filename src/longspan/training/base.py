"""What all training runs share: token counts, validation scores, checkpoints, several processes."""

import abc
import contextlib
import math
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch
from datasets import Dataset
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError
from torch import Tensor
from transformers import TrainerControl
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import rotate_checkpoints, speed_metrics

from longspan.data.processor import Processor
from longspan.errors import UserError
from longspan.results.scores import S
from longspan.training import checkpoints, processes
from longspan.training.averaging import AveragesCheckpoints
from longspan.training.optimizers import IN_PARTS, JoinsOptimizers
from longspan.training.part_scores import PartScores
from longspan.training.plain_losses import PlainLosses
from longspan.training.sessions import Sessions
from longspan.training.stopping import EarlyStopping
from longspan.training.uploading import push_run, refused

MOST_EPOCHS = 50
"""The most epochs that `at_least` sets: with more, models overfit."""


class LongspanTrainer(AveragesCheckpoints, PartScores, PlainLosses, JoinsOptimizers, abc.ABC, Generic[S]):
    """A `Trainer` that counts real tokens, has its own scores, and keeps the last good checkpoint when a save fails.

    Each of several processes trains on its share of every batch, and together they take the same steps as one process
    with the entire batch: `Trainer` counts the labels of all accumulated batches in all processes
    (`num_items_in_batch`), and the models' heads divide their summed losses by that number. `Trainer` then multiplies
    by the number of processes, as gradients are averaged over them.

    Attributes:
        real_tokens: number of tokens trained on so far in this process, without padding.
        seconds_not_training: seconds spent on evaluations and saves so far in this process.
        sessions: what the run has taken so far, what it took before it was resumed included.
        masks: the masks of a batch, whose ones are counted as tokens.
        processor: what is saved with each checkpoint, so that it can be used by itself; None for nothing.
        finishing: whether the run ends with the checkpoint that it is resumed from, without further steps.
        scored: the validation scores by the step after which they were measured, since this process started.
    """

    control: TrainerControl

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.real_tokens = 0
        self.seconds_not_training = 0.0
        self.sessions = Sessions()
        self.add_callback(self.sessions)
        self.processor: Processor | None = None
        self.masks: Sequence[str] = ("attention_mask",)
        self.finishing = False
        self.scored: dict[int, S] = {}
        self._total_steps = 0

    @abc.abstractmethod
    def score(self, dataset: Dataset) -> S:
        """Return the scores of the model on a data set. All processes call this, share the work and agree."""

    @abc.abstractmethod
    def padding_fraction(self) -> float:
        """Return the share of padding in an epoch's training batches of all processes, from 0 to 1."""

    def batch_positions(self, epoch: int) -> list[int]:
        """Return how many positions, padding included, each batch of an epoch has in this process, in order.

        Only the ratios matter: time budgets are planned by them. By default, all batches have the same size.
        """
        return [1] * len(self.get_train_dataloader())

    def rehearse(self, dataset: Dataset) -> None:
        """Do the work of scoring a data set, to see what it costs; by default, `score` it."""
        self.score(dataset)

    def validation_sizes(self) -> np.ndarray:
        """Return how much work it is to score each validation example, (n,): its `length`, or 1 where it has none.

        Only the ratios matter: time budgets are planned by them.
        """
        rows = len(self.eval_dataset)
        has_length = "length" in self.eval_dataset.column_names
        return np.asarray(self.eval_dataset["length"][:]) if has_length else np.ones(rows, dtype=np.int64)

    def per_token_columns(self) -> Sequence[str]:
        """Return the columns with a value for each token: `rehearse` bears rows whose ends are cut off all of these.

        By default it is empty, and only whole examples are rehearsed.
        """
        return ()

    def at_least(self, steps: int) -> None:
        """Raise the number of epochs so that training takes at least `steps` steps, if `MOST_EPOCHS` are enough for
        that.

        A number of steps that is given counts for itself.
        """
        if self.args.max_steps > 0:
            return
        per_epoch = max(1, math.ceil(len(self.get_train_dataloader()) / self.args.gradient_accumulation_steps))
        epochs = min(MOST_EPOCHS, math.ceil(steps / per_epoch))
        self.args.num_train_epochs = max(self.args.num_train_epochs, epochs)

    def train(self, *args: Any, **kwargs: Any) -> Any:
        if self.average_last and self.accelerator.distributed_type in IN_PARTS:
            raise UserError(
                "expected whole weights in each process for training.average_last, got weights sharded over processes; "
                "leave it out."
            )
        with processes.sharing():
            return super().train(*args, **kwargs)

    def training_step(self, model: torch.nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        self.real_tokens += sum(int(inputs[name].sum()) for name in self.masks)
        loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        # Without scaled gradients, a step with such a loss would leave no weight with a number.
        if not self.args.fp16 and processes.largest(int(not loss.isfinite())):
            raise UserError(
                f"expected a finite training loss, got one that is not in step {self.state.global_step + 1:,}, so "
                f"training diverged; lower training.learning_rate={self.args.learning_rate:g}."
            )
        return loss

    def count_sessions(self) -> None:
        """Bring `sessions` up to date. All processes call this."""
        self.sessions.count(self.real_tokens, self.seconds_not_training)

    def _init_training_state(self, max_steps: int, *args: Any, **kwargs: Any) -> tuple[int, int]:
        self._total_steps = max_steps
        started: tuple[int, int] = super()._init_training_state(max_steps, *args, **kwargs)
        self._find_best_model()
        return started

    def _find_best_model(self) -> None:
        # The Trainer looks for the best model where it was saved, and loses it if the run folder has been moved.
        best = Path(self.args.output_dir) / f"checkpoint-{self.state.best_global_step}"
        if self.state.best_global_step and best.is_dir():
            self.state.best_model_checkpoint = str(best)

    def _load_callback_state(self) -> None:
        """Restore callbacks in place from a checkpoint; `Trainer` would replace them, and only if asked to."""
        longer = self._total_steps > self.state.max_steps
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                own = callback.state()
                # A checkpoint of an earlier version lacks it, and the Trainer will look for it when it saves.
                saved = self.state.stateful_callbacks.setdefault(type(callback).__name__, own)
                for name in own["attributes"]:
                    setattr(callback, name, saved["attributes"].get(name, own["attributes"][name]))
            if longer and isinstance(callback, EarlyStopping):
                callback.go_on()

    def _load_best_model(self) -> None:
        with self.not_training():
            super()._load_best_model()

    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # Tied weights are saved once.
        missing = [name for name in load_result.missing_keys if name not in self.model.all_tied_weights_keys]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    def _run_epoch(self, *, num_update_steps_per_epoch: int, **kwargs: Any) -> None:
        if self.finishing or self.control.should_training_stop:
            # A callback has decided so when training began; the Trainer asks only after its first step.
            self.control.should_training_stop = True
            return
        if self.state.global_step >= self.state.max_steps:
            # Resumed after the last step, in the middle of an epoch: the Trainer would take one more.
            num_update_steps_per_epoch = 0
            if self._was_evaluated():
                self.control.should_training_stop = True
                return
        super()._run_epoch(num_update_steps_per_epoch=num_update_steps_per_epoch, **kwargs)

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        if self.finishing and self.args.eval_strategy != "no" and not self._was_evaluated():
            # Where training was stopped, the model may be better than at the last evaluation. Patience is a matter of
            # those made in training.
            self.remove_callback(EarlyStopping)
            self._determine_best_metric(metrics=self.evaluate(), trial=None)
            self._find_best_model()
        return super()._finalize_training(*args, **kwargs)

    def _was_evaluated(self) -> bool:
        """Return whether the model has been evaluated after the last step."""
        return any(row["step"] == self.state.global_step and "eval_runtime" in row for row in self.state.log_history)

    def evaluate(
        self,
        eval_dataset: Dataset | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Score `eval_dataset`, by default the one given at construction, and log its numbers; see `Trainer`.

        Unlike in `Trainer`, `score` is responsible for batches, for sharing the work and for the scores.
        """
        with self.not_training():
            start = time.time()
            dataset = self.eval_dataset if eval_dataset is None else eval_dataset
            scores = self.score(dataset)
            if eval_dataset is None:
                self.scored[self.state.global_step] = scores
            numbers = scores.numbers() | ({} if eval_dataset is not None else self.losses_as_trained())
            logs = {f"{metric_key_prefix}_{name}": value for name, value in numbers.items()}
            logs |= speed_metrics(metric_key_prefix, start, num_samples=len(dataset))
            self.log(logs)
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, logs)
        return logs

    def validation_scores(self) -> S:
        """Return the validation scores of the model that training kept, measuring them only if no evaluation has."""
        kept = self.kept_step()
        self.has_kept()
        if kept not in self.scored:
            self.scored[kept] = self.score(self.eval_dataset)
        return self.scored[kept]

    def losses_as_trained(self) -> dict[str, float]:
        """Return the validation loss of what is trained as `loss_as_trained`, where only a part of the model is.

        It is that of the last call of `score`. By default it is empty: the score called `loss` is of what is trained.
        """
        return {}

    def kept_step(self) -> int:
        """Return the step after which the model was saved that training kept; the last one for a mean of several."""
        if self.averaged is not None and self.averaged.kept:
            return self.state.global_step
        # A model that was the best when it was not saved is lost.
        best = self.state.best_global_step if self.state.best_model_checkpoint else None
        return best if self.args.load_best_model_at_end and best else self.state.global_step

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        try:
            super().init_hf_repo(token, private)
        except (HfHubHTTPError, OSError, ValueError) as error:
            raise refused(self.args.hub_model_id, error) from error

    def push_to_hub(
        self,
        commit_message: str = "End of training",
        *,
        token: str | None = None,
        revision: str | None = None,
        private: bool | None = None,
    ) -> None:
        """Upload the run folder, in which `output_dir` lies, with its card, which `Trainer` would replace by its own.

        Raises UserError for a run that is not finished, and what `push_run` does.
        """
        folder = Path(self.args.output_dir).absolute().parent
        if self.is_world_process_zero():
            push_run(
                folder,
                self.args.hub_model_id or folder.name,
                message=commit_message,
                token=token or self.args.hub_token,
                revision=revision or self.args.hub_revision,
                private=self.args.hub_private_repo if private is None else private,
            )

    def _push_from_checkpoint(self, checkpoint_folder: str) -> None:
        # Only a finished run has a card.
        pass

    @contextlib.contextmanager
    def not_training(self) -> Iterator[None]:
        """Exclude the time in the `with` block from tokens per second."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds_not_training += time.perf_counter() - start

    def _save_checkpoint(self, model: torch.nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir)
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        # The Trainer would remove an older checkpoint before this one is sealed.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with self.not_training(), processes.sharing():
                # A checkpoint saved earlier at this step would keep its seal if this save were cut short.
                processes.on_first(lambda: (checkpoint / checkpoints.SEAL).unlink(missing_ok=True))
                self.count_sessions()
                super()._save_checkpoint(model, trial)
                if self.processor is not None and self.args.should_save:
                    self.processor.save_pretrained(str(checkpoint))
                processes.wait()
                processes.on_first(lambda: checkpoints.seal(checkpoint))
                if self.args.should_save:
                    best = self.state.best_model_checkpoint
                    rotate_checkpoints(str(folder), save_total_limit=limit, best_model_checkpoint=best, use_mtime=True)
        except (OSError, RuntimeError, SafetensorError) as error:
            # torch and safetensors report a full disk as errors of their own.
            if self.args.should_save:
                shutil.rmtree(checkpoint, ignore_errors=True)
            kept = checkpoints.last_checkpoint(folder)
            raise UserError(
                f"expected to save a checkpoint at step {self.state.global_step}, got an error ({error}), with "
                + (f"{kept.name} kept; " if kept else "no earlier checkpoint; ")
                + "free some space, then run the same command with --resume."
            ) from error
        finally:
            self.args.save_total_limit = limit
