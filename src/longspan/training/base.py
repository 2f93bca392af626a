"""What all training runs share: token counts, validation scores, checkpoints, several processes."""

import abc
import contextlib
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

import numpy as np
import torch
from datasets import Dataset
from huggingface_hub import CommitInfo, CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn
from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import rotate_checkpoints, speed_metrics

from longspan.data.processor import Processor
from longspan.data.text.pairs import TARGET
from longspan.errors import UserError
from longspan.models.model import LongspanPreTrainedModel
from longspan.models.publishing import addressed
from longspan.results.parts import Parts
from longspan.results.scores import S
from longspan.training import checkpoints, processes
from longspan.training.optimizers import IN_PARTS, JoinsOptimizers
from longspan.training.stopping import EarlyStopping


@dataclass(frozen=True)
class Averaged:
    """What came of it.

    Attributes:
        steps: After which steps the checkpoints were saved, the first one first.
        metric: The score by which models are chosen; empty where there are too few checkpoints for a mean.
        value: That of the mean on the validation split; None without validation.
        best: That of the best checkpoint.
        kept: Whether the mean is the model that was kept.
    """

    steps: list[int]
    metric: str
    value: float | None
    best: float | None
    kept: bool

    def announcement(self) -> str:
        """Return it in a sentence."""
        if len(self.steps) < 2:
            found = "1 checkpoint" if self.steps else "no checkpoint"
            return f"training.average_last found {found}, of which there is no mean; kept the model as it was."
        mean = f"the mean of the last {len(self.steps)} checkpoints"
        if self.value is None or self.best is None:
            return f"kept {mean}, without validation."
        chosen = "kept the mean" if self.kept else "kept the checkpoint"
        return f"{mean} has a validation {self.metric} of {self.value:.4g}, the best one {self.best:.4g}; {chosen}."


def load_mean(model: nn.Module, folders: Sequence[Path]) -> None:
    """Give a model the mean of the parameters in the folders of checkpoints; its buffers, such as fitted counts, stay.

    Sums are in float64, so that their order and number do not matter.

    Raises:
        UserError: A checkpoint lacks a parameter, as those of adapters and of sharded weights do.
    """
    parameters = {name: each for name, each in model.named_parameters() if each.is_floating_point()}
    sums = {name: torch.zeros_like(each, dtype=torch.float64, device="cpu") for name, each in parameters.items()}
    for checkpoint in folders:
        missing = set(sums)
        for path in sorted(checkpoint.glob("model*.safetensors")):
            with safe_open(path, "pt") as file:
                for name in missing & set(file.keys()):
                    sums[name] += file.get_tensor(name)
                missing -= set(file.keys())
        if missing:
            raise UserError(
                f"expected all weights of the model in {checkpoint} for training.average_last, got none named "
                f"{min(missing)}; leave training.average_last out."
            )
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(sums[name] / len(folders))


def _copied(model: nn.Module) -> dict[str, Tensor]:
    """Return copies of all that a model consists of, for `load_state_dict`."""
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


class AveragesCheckpoints:
    """Part of a trainer: replaces the model that was kept by the mean of the last checkpoints, if that is better.

    Attributes:
        average_last: of how many checkpoints `average` takes the mean; 0 for none.
        averaged: what came of it, once it did.
    """

    args: Any
    model: Any
    state: Any
    eval_dataset: Any
    scored: dict[int, Any]
    score: Callable[[Any], Any]
    kept_step: Callable[[], int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.average_last = 0
        self.averaged: Averaged | None = None

    def average(self) -> None:
        """After training, keep the mean of the last checkpoints if it is better on the validation split.

        Without validation it is kept in any case. All processes call this.
        """
        found = checkpoints.complete(Path(self.args.output_dir))[: self.average_last][::-1]
        if len(found) < 2:
            self.averaged = Averaged([*map(checkpoints.step, found)], "", None, None, kept=False)
            return
        kept, best, metric = _copied(self.model), self.state.best_metric, self.args.metric_for_best_model
        load_mean(self.model, found)
        value, better, step = None, True, self.state.global_step
        if self.args.eval_strategy != "no":
            before = self.kept_step()
            self.scored[step] = self.score(self.eval_dataset)
            value = self.scored[step].numbers()[metric.removeprefix("eval_")]
            better = best is None or (value > best if self.args.greater_is_better else value < best)
            if not better:
                self.model.load_state_dict(kept)
                if before == step:
                    # What subclasses know of this step is that of the mean.
                    self.scored[step] = self.score(self.eval_dataset)
        self.averaged = Averaged([*map(checkpoints.step, found)], metric, value, best, better)


class PartScores:
    """Part of a trainer: remembers what compares a model's parts on the validation split, after each step it scored.

    Attributes:
        model_step: After which step the weights were saved that the model has now.
    """

    eval_dataset: Any
    state: Any
    kept_step: Callable[[], int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loaded_step: int | None = None
        self._by_step: dict[int, Callable[[], Parts]] = {}
        self._of_test: Callable[[], Parts] | None = None

    @property
    def model_step(self) -> int:
        step: int = self.state.global_step if self._loaded_step is None else self._loaded_step
        return step

    def has_kept(self) -> None:
        """Take note that training is over and the model has the weights that were kept."""
        self._loaded_step = self.kept_step()

    def remember_parts(self, dataset: Dataset, compare: Callable[[], Parts]) -> None:
        """Take in what compares the parts on a data set; it is called, if at all, when training is over."""
        if dataset is self.eval_dataset:
            self._by_step[self.model_step] = compare
        else:
            self._of_test = compare

    def details(self) -> dict[str, Any]:
        """Return what else results should say about the model that was kept: by default, how its parts compare.

        They are "parts" on the validation and "test_parts" on the test split; nothing for a model of one part.
        """
        found = {"parts": self._by_step.get(self.kept_step()), "test_parts": self._of_test}
        return {name: compare().to_dict() for name, compare in found.items() if compare is not None}


class PlainLosses(Trainer):
    """A `Trainer` that logs the training loss without label smoothing and class weights, as validation measures it.

    A model that trains with either returns a `plain_loss` in addition to the loss to minimise. Both use the same
    logits, so the second loss costs little.

    Raises:
        UserError: for `label_smoothing_factor` with a longspan model whose labels are not single classes.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._plain_loss: Tensor | None = None
        if self.label_smoother is not None and isinstance(self.model, LongspanPreTrainedModel):
            self._let_the_model_smooth()

    def _let_the_model_smooth(self) -> None:
        """Leave label smoothing to the model: `Trainer` would replace the model's loss, and so lose class weights."""
        smoothing, self.label_smoother = self.args.label_smoothing_factor, None
        if not getattr(self.model, "smooths_labels", False):
            raise UserError(
                "expected training.label_smoothing_factor=0 for a model whose labels are not single classes, got "
                f"{smoothing}; leave it out."
            )
        self.model.config.head.label_smoothing = smoothing

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Take gradients of the loss to minimise, and return the loss to log."""
        loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        plain, self._plain_loss = self._plain_loss, None
        return loss if plain is None else plain.mean()

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return this batch's share of the loss to minimise, and keep the plain one for the log; see `Trainer`."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        plain = getattr(outputs, "plain_loss", None)
        if plain is not None:
            # `Trainer` multiplies it by the number of processes, as it does the other.
            plain = super().compute_loss(lambda **_: {"loss": plain}, inputs, num_items_in_batch=num_items_in_batch)
        self._plain_loss = plain
        return (loss, outputs) if return_outputs else loss


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


#: What tools besides longspan read or people look at; never a pickle, no checkpoint, no log.
_KINDS = (".json", ".jsonl", ".md", ".model", ".png", ".safetensors", ".toml", ".txt")


def push_run(
    folder: Path,
    repository: str,
    *,
    message: str,
    token: str | None = None,
    revision: str | None = None,
    private: bool | None = None,
) -> CommitInfo:
    """Upload the files of a finished run, but for its checkpoints, with its card as the repository's.

    Raises:
        UserError: the run is unfinished, or the Hub refuses or cannot be reached.
    """
    if not (folder / "metrics.json").is_file():
        raise UserError(f"expected a finished run to push, got {str(folder)!r}; finish its training first.")
    api = HfApi(token=token)
    try:
        repository = api.create_repo(repository, private=private, exist_ok=True).repo_id
        if revision is not None:
            api.create_branch(repository, branch=revision, exist_ok=True)
        every = sorted([*folder.iterdir(), *(folder / TARGET).glob("*")])
        files = {
            path.relative_to(folder).as_posix(): path for path in every if path.suffix in _KINDS and path.is_file()
        }
        card = addressed((folder / "README.md").read_text(encoding="utf-8"), repository).encode()
        operations = [CommitOperationAdd(name, card if name == "README.md" else path) for name, path in files.items()]
        return api.create_commit(repository, operations, commit_message=message, revision=revision)
    except (HfHubHTTPError, OSError, ValueError) as error:
        raise refused(repository, error) from error


def refused(repository: str | None, error: Exception) -> UserError:
    """Return the one sentence about what the Hub answered, or why it could not be asked."""
    told = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
    return UserError(
        f"expected to write to {repository!r} on the Hugging Face Hub, got an error ({told}); log in with "
        "`hf auth login`, check training.hub_model_id and the connection, or leave training.push_to_hub out."
    )
