"""The trainer of all tasks: losses, optimizers, validation scores, checkpoints, averaging, uploads."""

import abc
import contextlib
import functools
import itertools
import math
import shutil
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Generic

import numpy as np
import torch
from accelerate import DistributedType
from accelerate.utils import send_to_device
from datasets import Dataset
from huggingface_hub.errors import HfHubHTTPError
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.optim import Adam, Optimizer
from torch.optim.lr_scheduler import LambdaLR
from transformers import PreTrainedModel, Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_callback import ExportableState
from transformers.trainer_utils import HubStrategy, get_last_checkpoint, speed_metrics
from typing_extensions import override

from longspan.data.processor import Processor
from longspan.data.sources.shards import ShardReader, Streamed
from longspan.errors import UserError
from longspan.models.model import LongspanPreTrainedModel
from longspan.ops import slices
from longspan.ops.execution import on_cpu
from longspan.results.parts import Parts
from longspan.results.scores import S
from longspan.training import checkpoints, processes
from longspan.training.arguments import Arguments, data_seed
from longspan.training.checkpoints import Averaged
from longspan.training.context_parallel import ProcessSlices, check_model, cut_batch, process_slices
from longspan.training.depths import decay
from longspan.training.optimizers import Joined, Muon, apart, clip_gradients, matrices_of, tables_of, take
from longspan.training.sharding import KINDS, Shards
from longspan.training.stopping import EarlyStopping, best_scores, improves
from longspan.training.streams import StreamBatches
from longspan.training.uploads import push_run, refused

IN_PARTS = (DistributedType.FSDP, DistributedType.DEEPSPEED, DistributedType.MEGATRON_LM, DistributedType.XLA)
"""Where each process has parts of the weights."""

MOST_EPOCHS = 50
"""The most epochs that `raise_epochs_to` sets: with more, models overfit."""


class LongspanTrainer(Trainer, abc.ABC, Generic[S]):
    """A `Trainer` that counts real tokens, has its own scores, and keeps the last good checkpoint when a save fails.

    Each of several processes trains on its share of every batch, and together they take the same steps as one process
    with the entire batch: the model counts the items of all accumulated batches in all processes
    (`num_items_in_batch`), and its head divides the summed losses by that number. `Trainer` then multiplies by the
    number of processes, as gradients are averaged over them.

    The training loss in the log is measured as that of validation: without label smoothing and class weights.

    Attributes:
        real_tokens: number of tokens trained on so far in this process, without padding.
        seconds_not_training: seconds spent on evaluations and saves so far in this process.
        sessions: totals of the run so far, over all times that it was resumed.
        masks: the masks of a batch, whose ones are counted as tokens.
        processor: what is saved with each checkpoint, so that it can be used by itself; None for nothing.
        finishing: whether the run ends with the checkpoint that it is resumed from, without further steps.
        scored: the validation scores by the step after which they were measured, since this process started.
        scores_again: whether final scores of the validation split are other ones than those during training.
        expected_steps: number of steps that are expected by the deadline of a time budget; 0 without one.
        layer_decay: factor of the learning rate for each layer above a parameter.
        average_last: number of checkpoints in the mean that `average` takes; 0 for none.
        averaged: result of `average`, once it was called.
        loss_as_trained: validation loss of the trained part at the last call of `score`; None where all is trained.
        cut_streams: the streams (b, t, ...) of batches that `cut_rows` cuts, with their padding; none for tasks whose
            rows cannot be cut.
        slices: the slice that this process reads of each row in training; None for whole rows.

    Args:
        streamed: training rows that are read in place of the data set, which is a sample of them; None for none.

    Raises:
        UserError: for `label_smoothing_factor` with a longspan model whose labels are not single classes.
    """

    control: TrainerControl
    optimizer: Any
    scores_again = False
    cut_streams: ClassVar[Mapping[str, int]] = {}

    def __init__(
        self, *args: Any, callbacks: Sequence[Any] | None = None, streamed: Streamed | None = None, **kwargs: Any
    ) -> None:
        self.sessions = Sessions()
        self.streamed = streamed
        # The first restores what the others had saved.
        super().__init__(*args, callbacks=[_Restoring(self), self.sessions, *(callbacks or ())], **kwargs)
        # Those of `Trainer` would replace callbacks, and upload runs that are not finished and thus have no card.
        self.args.restore_callback_states_from_checkpoint = False
        self.args.hub_strategy = HubStrategy.END
        if not self.args.fp16:
            # Such a loss ends the run (`_check_losses`); `Trainer` would wait for a GPU to look for one in each step.
            self.args.logging_nan_inf_filter = False
        self.real_tokens = 0
        self.seconds_not_training = 0.0
        self.processor: Processor | None = None
        self.masks: Sequence[str] = ("attention_mask",)
        self.finishing = False
        self.scored: dict[int, S] = {}
        self.expected_steps = 0
        self.layer_decay = 1.0
        self.average_last = 0
        self.averaged: Averaged | None = None
        self.loss_as_trained: float | None = None
        self.slices: ProcessSlices | None = None
        self._shards: Shards | None = None
        self._rehearses = False
        self._plain_loss: Tensor | None = None
        # The first step whose loss is not finite.
        self._diverged: Tensor | None = None
        self._resumed_from: Path | None = None
        # The step of the weights that the model has now; None in training.
        self._loaded_step: int | None = None
        self._parts: dict[int, Callable[[], Parts]] = {}
        self._test_parts: Callable[[], Parts] | None = None
        self._count_items: Callable[[Tensor], Tensor] | None = None
        if isinstance(self.model, LongspanPreTrainedModel):
            self._count_items = self.model.count_items
            if self.label_smoother is not None:
                self._let_the_model_smooth()

    # A task's part: scores and sizes

    @abc.abstractmethod
    def score(self, dataset: Dataset) -> S:
        """Scores of the model on a data set. All processes call this, share the work and agree."""

    @abc.abstractmethod
    def padding_fraction(self) -> float:
        """Share of padding in an epoch's training batches of all processes, from 0 to 1."""

    def batch_positions(self, epoch: int) -> list[int]:
        """Number of positions, padding included, in each batch of an epoch in this process, in order.

        Only the ratios matter: training runs are planned by them. By default, all batches have the same size.
        """
        return [1] * len(self.get_train_dataloader())

    def rehearse(self, dataset: Dataset) -> None:
        """Do the work of scoring a data set during training, to see what it costs; by default, `score` it."""
        self.score(dataset)

    def rehearse_final(self, dataset: Dataset) -> None:
        """Do the work of the final scores of a data set; by default, that during training."""
        self.rehearse(dataset)

    @contextlib.contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Show and remember nothing of what is rehearsed in the `with` block."""
        hidden, self.args.disable_tqdm = self.args.disable_tqdm, True
        self._rehearses = True
        try:
            with self._whole_weights():
                yield
        finally:
            self._rehearses, self.args.disable_tqdm = False, hidden

    def scoring_sizes(self, dataset: Dataset) -> np.ndarray:
        """Work of scoring each example of a data set, (n,): its `length`, or 1 where it has none.

        Only the ratios matter: deadlines are kept by them.
        """
        if "length" in dataset.column_names:
            return np.asarray(dataset["length"][:])
        return np.ones(len(dataset), dtype=np.int64)

    def per_token_columns(self) -> Sequence[str]:
        """Columns with a value for each token: `rehearse` bears rows whose ends are cut off all of these.

        By default there are none, and only whole examples are rehearsed.
        """
        return ()

    def reporting(self) -> dict[str, Any]:
        """Arguments of functions that compute a model's outputs: `progress`, whether to show it, and `after_batch`."""
        shown = not self.args.disable_tqdm and self.is_world_process_zero()
        return {"progress": shown, "after_batch": self._scored_a_batch}

    def _scored_a_batch(self) -> None:
        self.control = self.callback_handler.on_prediction_step(self.args, self.state, self.control)

    def _losses_as_trained(self) -> dict[str, float]:
        return {} if self.loss_as_trained is None else {"loss_as_trained": self.loss_as_trained}

    @functools.cached_property
    def stream(self) -> StreamBatches | None:
        """Batches of streamed rows; None where the data are stored."""
        if self.streamed is None:
            return None
        args, world, data = self.args, self.group_count, self.streamed.fingerprint()
        batches, of_sample = self.stream_batches(ShardReader(self.streamed, data_seed(args), self.group_number, world))
        count = self.streamed.batches(of_sample, args.max_steps * args.gradient_accumulation_steps)
        return StreamBatches(batches, count, args.process_index, world, data)

    def stream_batches(self, reader: ShardReader) -> tuple[Any, int]:
        """Batches of this process's shards, see `StreamBatches`, and the number of those of the sample."""
        raise NotImplementedError

    def save_state(self, checkpoint: Path) -> None:
        """Add files of this process to a checkpoint before it is sealed; by default, its place in streamed rows."""
        if self.stream is not None:
            self.stream.save(checkpoint)

    def restore_state(self, checkpoint: Path) -> None:
        """Read what `save_state` wrote, when training is resumed."""
        if self.stream is not None and not self.finishing:
            self.stream.restore(checkpoint)

    # Steps and their losses

    def train(self, resume_from_checkpoint: str | bool | None = None, *args: Any, **kwargs: Any) -> Any:
        if self.average_last and self.accelerator.distributed_type in IN_PARTS:
            raise UserError(
                "expected whole weights in each process for training.average_last, got weights sharded over processes; "
                "leave it out."
            )
        last = get_last_checkpoint(self.args.output_dir) if resume_from_checkpoint is True else resume_from_checkpoint
        self._resumed_from = Path(last) if last else None
        with processes.sharing():
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def cut_rows(self, count: int) -> None:
        """Let each `count` successive processes train on slices of the same rows. All processes call this.

        Raises:
            UserError: The task's rows cannot be cut, the model cannot read slices, or `count` does not divide the
                number of processes.
        """
        if not self.cut_streams:
            raise UserError(
                f"expected a task whose rows are cut over processes, such as model-text or classify, with "
                f"training.context_parallel={count}, got another one; leave it out."
            )
        divided = self.accelerator.distributed_type in IN_PARTS or bool(getattr(self.args, "shards", ""))
        if self.args.gradient_checkpointing or self.args.torch_compile or divided:
            raise UserError(
                f"expected whole weights, no gradient checkpointing and no torch_compile with "
                f"training.context_parallel={count}, whose processes wait for each other in the middle of layers; "
                "leave one of them out."
            )
        check_model(self.model)
        self.slices = process_slices(count)

    @property
    def group_count(self) -> int:
        """Number of processes, or groups of them, that read rows of their own in training."""
        return self.args.world_size // (1 if self.slices is None else self.slices.count)

    @property
    def group_number(self) -> int:
        """Number of this group, from 0."""
        return self.args.process_index // (1 if self.slices is None else self.slices.count)

    def raise_epochs_to(self, steps: int) -> None:
        """Raise the number of epochs so that training takes at least `steps` steps, with at most `MOST_EPOCHS` epochs.

        A number of steps in the arguments counts for itself.
        """
        # Also says if there is too little to train on.
        batches = len(self.get_train_dataloader())
        if self.args.max_steps > 0:
            return
        per_epoch = max(1, math.ceil(batches / self.args.gradient_accumulation_steps))
        epochs = min(MOST_EPOCHS, math.ceil(steps / per_epoch))
        self.args.num_train_epochs = max(self.args.num_train_epochs, epochs)

    def training_step(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Tensor:
        """Take gradients of the loss to minimise, and return the loss to log."""
        self.real_tokens += sum(int(inputs[name].sum()) for name in self.masks)
        with slices.entered(self.slices), warnings.catch_warnings():
            # Nothing writes into outputs of a model with divided weights.
            warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor")
            loss: Tensor = super().training_step(model, inputs, *args, **kwargs)
        plain, self._plain_loss = self._plain_loss, None
        loss = loss if plain is None else plain.mean()
        if not self.args.fp16:
            step = torch.where(loss.isfinite(), math.inf, self.state.global_step + 1.0)
            self._diverged = step if self._diverged is None else torch.minimum(self._diverged, step)
            if on_cpu(loss):
                self._check_losses()
        return loss

    def _check_losses(self) -> None:
        """Raise UserError if a loss was not finite: without scaled gradients, its step left no weight with a number.

        On a CPU, that is before the step; on a GPU, which the host does not wait for, before anything is made of it.
        """
        step = math.inf if self._diverged is None else -processes.largest(-float(self._diverged))
        if step < math.inf:
            raise UserError(
                f"expected a finite training loss, got one that is not in step {step:,.0f}, so training diverged; "
                f"lower training.learning_rate={self.args.learning_rate:g}."
            )

    @override
    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        if self.control.should_log or self.control.should_evaluate or self.control.should_save:
            self._check_losses()
        super()._maybe_log_save_evaluate(*args, **kwargs)

    @property
    def pins(self) -> bool:
        """Whether batches are put where a GPU can copy them from while the host goes on."""
        return bool(self.args.dataloader_pin_memory) and self.args.device.type == "cuda"

    @override
    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        prepared: dict[str, Any] = super()._prepare_inputs(self._sent(inputs))
        return prepared

    def _sent(self, given: Any) -> Any:
        """Return tensors on the device of training; while they are copied to a GPU, the host goes on."""
        return send_to_device(given, self.args.device, non_blocking=self.args.device.type != "mps")

    def compute_loss(
        self,
        model: Any,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """This batch's share of the loss to minimise; the plain one of the model is kept for the log. See `Trainer`."""
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        plain = getattr(outputs, "plain_loss", None)
        if plain is not None:
            # `Trainer` multiplies it by the number of processes, as it does the other.
            plain = super().compute_loss(lambda **_: {"loss": plain}, inputs, num_items_in_batch=num_items_in_batch)
        self._plain_loss = plain
        return (loss, outputs) if return_outputs else loss

    def get_batch_samples(
        self, epoch_iterator: Iterator[dict[str, Any]], num_batches: int, device: torch.device
    ) -> tuple[list[dict[str, Any]], Tensor | int | None]:
        """Batches of a step, and the number of items that their losses are a mean over, in all processes."""
        batches = list(itertools.islice(epoch_iterator, num_batches))
        if self.slices is not None:
            for batch in batches:
                rows = {name: batch[name] for name in self.cut_streams if name in batch}
                self.slices.check_same({**rows, "steps": torch.tensor([self.state.max_steps])}, device)
            batches = [cut_batch(self.slices, batch, self.cut_streams) for batch in batches]
        counted = batches
        name = "shift_labels" if batches and "shift_labels" in batches[0] else "labels"
        if self._count_items is not None and all(name in batch for batch in batches):
            counts = [int(self._count_items(batch[name])) for batch in batches]
            # As many labels as items, since `Trainer` counts labels.
            counted = [{"labels": None, "shift_labels": torch.zeros(count, dtype=torch.int8)} for count in counts]
        # A single process does not wait for the copy of one number.
        alone = self.args.world_size == 1 and self.args.n_gpu <= 1
        return batches, self._sent(self._get_num_items_in_batch(counted, torch.device("cpu") if alone else device))

    def _let_the_model_smooth(self) -> None:
        """Leave label smoothing to the model: `Trainer` would replace the model's loss, and so lose class weights."""
        smoothing, self.label_smoother = self.args.label_smoothing_factor, None
        if not self.model.smooths_labels:
            raise UserError(
                "expected training.label_smoothing_factor=0 for a model whose labels are not single classes, got "
                f"{smoothing}; leave it out."
            )
        self.model.config.head.label_smoothing = smoothing

    @functools.cached_property
    def _parameters_of_layers(self) -> int:
        return int(self.model.num_parameters(exclude_embeddings=True))

    def floating_point_ops(self, inputs: dict[str, Any]) -> int:
        """Estimate as of `Trainer`, which would have the model count its parameters in each step."""
        read = inputs.get(self.model.main_input_name)
        return 0 if read is None else 6 * read.numel() * self._parameters_of_layers

    @override
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

    @override
    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        self._check_losses()
        if self._shards is not None:
            # From here on each process works by itself.
            self._shards.gather()
            self._shards, self.model_wrapped = None, self.model
        if self.finishing and self.args.eval_strategy != "no" and not self._was_evaluated():
            # Where training was stopped, the model may be better than at the last evaluation. Patience is a matter of
            # those made in training.
            self.remove_callback(EarlyStopping)
            self._determine_best_metric(metrics=self.evaluate(), trial=None)
            self._find_best_model()
        return super()._finalize_training(*args, **kwargs)

    def batch_rows(self) -> int:
        """Rows in a batch of all processes."""
        return int(self._train_batch_size * self.group_count)

    def count_sessions(self) -> None:
        """Bring `sessions` up to date. All processes call this."""
        self.sessions.count(self.real_tokens, self.seconds_not_training)

    @contextlib.contextmanager
    def not_training(self) -> Iterator[None]:
        """Exclude the time in the `with` block from tokens per second."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds_not_training += time.perf_counter() - start

    # Optimizers

    @staticmethod
    def get_optimizer_cls_and_kwargs(args: TrainingArguments, model: PreTrainedModel | None = None) -> tuple[Any, Any]:
        """Class of the optimizer that the arguments name, and its arguments; see `Trainer`."""
        kind, settings = Trainer.get_optimizer_cls_and_kwargs(args, model)
        # Both have the same arguments.
        return (Adam if isinstance(args, Arguments) and args.coupled_adam else kind), settings

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Optimizer:
        """Create the optimizer that the arguments name, and others for matrices (Muon) and the rows of tables.

        Where processes have parts of each weight there are no rows, and one optimizer has all.

        Raises:
            UserError: Muon would have to orthogonalise matrices of which each process has a part.
        """
        given: Optimizer | None = self.optimizer
        if given is not None:
            return super().create_optimizer(*args, **kwargs)
        model: Any = self.model
        if isinstance(self.args, Arguments) and self.args.shards and processes.count() > 1:
            self._shards = Shards(model, reshard=KINDS[self.args.shards])
            model, args = self._shards.module, (self._shards.module, *args[1:])
        optimizer: Optimizer = super().create_optimizer(*args, **kwargs)
        parts, whole = {"dense": optimizer}, self.accelerator.distributed_type not in IN_PARTS
        if isinstance(self.args, Arguments) and self.args.muon:
            if not whole:
                raise UserError(
                    "expected whole weights in each process for training.optim=muon, got weights sharded over "
                    "processes; choose another."
                )
            if matrices := matrices_of(model):
                take(optimizer, matrices)
                parts["matrices"] = Muon(matrices, lr=self.args.learning_rate, weight_decay=self.args.weight_decay)
        sparse = self._shards is None and self._sparse()
        if whole and (tables := tables_of(model)):
            parts["tables"] = apart(tables, optimizer, self.args, sparse=sparse)
        if self._shards is not None or ("tables" in parts and sparse):
            self.accelerator.clip_grad_norm_ = self._clip_gradients
        if self.layer_decay != 1:
            for part in parts.values():
                decay(part, model, self.layer_decay)
        if self._shards is not None:
            for part in parts.values():
                self._shards.share_states(part)
        if len(parts) > 1:
            optimizer = self.optimizer = Joined(parts)
        return optimizer

    def _sparse(self) -> bool:
        """Whether gradients of tables can be sparse: gloo exchanges such, and NCCL does not.

        On a GPU the host would wait for the numbers of their rows, and they cut a compiled model in pieces.
        """
        kind = self.accelerator.distributed_type
        return self.args.device.type == "cpu" and kind in (DistributedType.NO, DistributedType.MULTI_CPU)

    @override
    def _wrap_model(self, model: nn.Module, training: bool = True, *args: Any, **kwargs: Any) -> Any:
        if self._shards is None or not training:
            return super()._wrap_model(model, training, *args, **kwargs)
        # Autocast and compilation, without DDP.
        return self.accelerator.prepare_model(self._shards.module, device_placement=False, evaluation_mode=True)

    def _whole_weights(self, *, keep: bool = True) -> contextlib.AbstractContextManager[None]:
        """Context in which the model has its weights in training; all processes enter it (`Shards.gathered`)."""
        return contextlib.nullcontext() if self._shards is None else self._shards.gathered(keep=keep)

    def _clip_gradients(self, parameters: Iterable[Tensor], most: float) -> Tensor:
        # Those of float16 are scaled.
        self.accelerator.unscale_gradients()
        return clip_gradients(parameters, most)

    @override
    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        try:
            super()._load_optimizer_and_scheduler(checkpoint)
        except (LookupError, ValueError) as error:
            raise UserError(
                f"expected the state of this run's optimizer in {checkpoint}, got that of another one (an older "
                "version's, or that of processes that shared weights in another way); resume as the run was started, "
                "or start again with --overwrite."
            ) from error
        # The optimizer's learning rate is that of the schedule with which the checkpoint was saved. If the run was
        # given more steps, the next one would still be taken with it, which at the end of a schedule is zero.
        if checkpoint is not None and isinstance(self.lr_scheduler, LambdaLR):
            scheduler = self.lr_scheduler
            for group, base, factor in zip(
                scheduler.optimizer.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
            ):
                group["lr"] = base * factor(scheduler.last_epoch)

    # Evaluation

    def evaluate(
        self,
        eval_dataset: Dataset | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> dict[str, float]:
        """Score `eval_dataset`, by default the one given at construction, and log its numbers; see `Trainer`.

        Unlike in `Trainer`, `score` is responsible for batches, for sharing the work and for the scores.
        """
        with self.not_training(), self._whole_weights():
            start = time.time()
            dataset = self.eval_dataset if eval_dataset is None else eval_dataset
            scores = self.score(dataset)
            if eval_dataset is None:
                self.scored[self.state.global_step] = scores
            numbers = scores.numbers() | ({} if eval_dataset is not None else self._losses_as_trained())
            logs = {f"{metric_key_prefix}_{name}": value for name, value in numbers.items()}
            logs |= speed_metrics(metric_key_prefix, start, num_samples=len(dataset))
            self.log(logs)
            self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, logs)
        return logs

    @override
    def _determine_best_metric(self, metrics: dict[str, float], trial: Any) -> bool:
        if improves(metrics, best_scores(self.state), *self._selection()):
            # The Trainer would keep the first of equal epochs.
            self.state.best_metric = None
        return bool(super()._determine_best_metric(metrics, trial))

    def _selection(self) -> tuple[str, bool]:
        """The score that selects the best model, and whether higher is better there."""
        return str(self.args.metric_for_best_model), bool(self.args.greater_is_better)

    def _was_evaluated(self) -> bool:
        """Whether the model has been evaluated after the last step."""
        return any(row["step"] == self.state.global_step and "eval_runtime" in row for row in self.state.log_history)

    def validation_scores(self) -> S:
        """Validation scores of the model that training kept, measured only if no evaluation has."""
        self._loaded_step = step = self.kept_step()
        if step not in self.scored:
            self.scored[step] = self.score(self.eval_dataset)
        return self.scored[step]

    def kept_step(self) -> int:
        """Step after which the model was saved that training kept; the last one for a mean of several."""
        if self.averaged is not None and self.averaged.kept:
            return self.state.global_step
        # A model that was the best when it was not saved is lost.
        best = self.state.best_global_step if self.state.best_model_checkpoint else None
        return best if self.args.load_best_model_at_end and best else self.state.global_step

    def scored_step(self) -> int:
        """Step after which the model was saved that is scored now."""
        return self.state.global_step if self._loaded_step is None else self._loaded_step

    def remember_parts(self, dataset: Dataset, compare: Callable[[], Parts]) -> None:
        """Keep what compares the parts of the model on a data set; it is called, if at all, when training is over."""
        if dataset is self.eval_dataset:
            self._parts[self.scored_step()] = compare
        elif not self._rehearses:
            self._test_parts = compare

    def details(self) -> dict[str, Any]:
        """Further results of the model that was kept: by default, a comparison of its parts.

        They are "parts" on the validation and "test_parts" on the test split; nothing for a model of one part.
        """
        found = {"parts": self._parts.get(self.kept_step()), "test_parts": self._test_parts}
        return {name: compare().to_dict() for name, compare in found.items() if compare is not None}

    def average(self) -> None:
        """Replace the model by the mean of the last checkpoints if it is better on the validation split.

        Without validation it is kept in any case. All processes call this after training.
        """
        found = checkpoints.complete(Path(self.args.output_dir))[: self.average_last][::-1]
        if len(found) < 2:
            self.averaged = Averaged([*map(checkpoints.step, found)], "", None, None, kept=False)
            return
        kept = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}
        best, metric = self.state.best_metric, self._selection()[0]
        checkpoints.load_mean(self.model, found)
        value, better, step = None, True, self.state.global_step
        if self.args.eval_strategy != "no":
            before = self.kept_step()
            self.scored[step] = self.score(self.eval_dataset)
            numbers = self.scored[step].numbers() | self._losses_as_trained()
            numbers = {f"eval_{name}": value for name, value in numbers.items()}
            value = numbers[f"eval_{metric.removeprefix('eval_')}"]
            better = improves(numbers, best_scores(self.state), *self._selection())
            if not better:
                self.model.load_state_dict(kept)
                if before == step:
                    # What subclasses know of this step is that of the mean.
                    self.scored[step] = self.score(self.eval_dataset)
        self.averaged = Averaged([*map(checkpoints.step, found)], metric, value, best, better)

    # Checkpoints

    @override
    def _save_checkpoint(self, model: nn.Module, trial: Any) -> None:
        folder = Path(self.args.output_dir)
        checkpoint = folder / f"checkpoint-{self.state.global_step}"
        # The Trainer would remove an older checkpoint before this one is sealed.
        limit, self.args.save_total_limit = self.args.save_total_limit, None
        try:
            with self.not_training(), processes.sharing():
                # A checkpoint saved earlier at this step would keep its seal if this save were cut short.
                processes.on_first(lambda: (checkpoint / checkpoints.SEAL).unlink(missing_ok=True))
                self.count_sessions()
                with self._whole_weights(keep=self.args.should_save):
                    super()._save_checkpoint(model, trial)
                if self.processor is not None and self.args.should_save:
                    self.processor.save_pretrained(str(checkpoint))
                if not self.args.save_only_model:
                    self.save_state(checkpoint)
                processes.wait()
                processes.on_first(lambda: checkpoints.seal(checkpoint, self.batch_rows()))
                if self.args.should_save:
                    checkpoints.rotate(folder, limit, self.state.best_model_checkpoint)
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

    @override
    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._shards is None or self.args.should_save:
            super()._save_optimizer_and_scheduler(output_dir)
        else:
            # The first process saves it with the parts of all.
            self.optimizer.state_dict()

    def restore(self) -> None:
        """Restore what the checkpoint has that training is resumed from, besides what `Trainer` has restored."""
        if self._resumed_from is None:
            return
        self._find_best_model()
        # Another number of processes has other shares of a batch.
        self.state.train_batch_size = self._train_batch_size
        before = TrainerState.load_from_json(str(self._resumed_from / checkpoints.STATE))
        for callback in self.callback_handler.callbacks:
            if isinstance(callback, ExportableState):
                own = callback.state()
                # A checkpoint of an earlier version lacks it, and the Trainer will look for it when it saves.
                saved = self.state.stateful_callbacks.setdefault(type(callback).__name__, own)
                for name in own["attributes"]:
                    setattr(callback, name, saved["attributes"].get(name, own["attributes"][name]))
            if self.state.max_steps > before.max_steps and isinstance(callback, EarlyStopping):
                callback.reset_patience()
        self.restore_state(self._resumed_from)

    def _find_best_model(self) -> None:
        # The Trainer looks for the best model where it was saved, and loses it if the run folder has been moved.
        best = Path(self.args.output_dir) / f"checkpoint-{self.state.best_global_step}"
        if self.state.best_global_step and best.is_dir():
            self.state.best_model_checkpoint = str(best)

    @override
    def _issue_warnings_after_load(self, load_result: Any) -> None:
        # Tied weights are saved once.
        missing = [name for name in load_result.missing_keys if name not in self.model.all_tied_weights_keys]
        super()._issue_warnings_after_load(load_result._replace(missing_keys=missing))

    # The Hugging Face Hub

    def init_hf_repo(self, token: str | None = None, private: bool | None = None) -> None:
        try:
            # Releases of transformers before `private` make the repository as `hub_private_repo` says.
            super().init_hf_repo(token, **{} if private is None else {"private": private})
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
        """Upload the run folder with its card, which `Trainer` would replace by its own; see `push_run`."""
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


class _Restoring(TrainerCallback):
    """Lets a trainer restore what it saved before the other callbacks learn that training begins."""

    def __init__(self, trainer: LongspanTrainer[Any]) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        self.trainer.restore()


class Sessions(TrainerCallback, ExportableState):
    """Totals of a run over all its sessions: from its start, over each time that it was resumed.

    The sums are saved with each checkpoint and restored from it. What a session did after its last checkpoint thus
    counts no more than the steps that are lost with it.

    Attributes:
        tokens: Real tokens trained on in all processes, as of the last `count`, like all of these.
        training_seconds: Seconds of training, without evaluating and saving.
        seconds: Seconds from start to end.
        peak_memory_bytes: The largest of any session.
        began: When this session started, by `time.perf_counter`.
        peak_memory: Largest memory use of this session so far in bytes, as a function.
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

    def on_log(self, args: Any, state: TrainerState, control: TrainerControl, logs: Any = None, **kwargs: Any) -> None:
        if logs and "train_runtime" in logs:
            # The last entry of a training run; what follows loads the best model.
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
        """Real tokens of all processes per second of training."""
        return self.tokens / max(1e-9, self.training_seconds)

    def state(self) -> dict[str, Any]:
        names = ("tokens", "training_seconds", "seconds", "peak_memory_bytes")
        return {"args": {}, "attributes": {name: getattr(self, name) for name in names}}
