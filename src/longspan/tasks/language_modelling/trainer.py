"""Training a language model on streams of segments, with states that carry over from one to the next."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from datasets import Dataset
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from transformers import PreTrainedModel
from typing_extensions import override

from longspan.data.sources.formats.schema import Row
from longspan.data.sources.shards import ShardReader
from longspan.data.text.long_documents import token_arrays
from longspan.errors import UserError
from longspan.models import MixerStates
from longspan.models.states import CACHE
from longspan.models.wide.language import Gate, Mixture, log_weights
from longspan.results.parts import BOTH, COUNTS, NETWORK
from longspan.tasks.base.corpora import excerpt
from longspan.tasks.language_modelling.excerpts import excerpt_scores
from longspan.tasks.language_modelling.likelihood import losses_of, token_outputs
from longspan.tasks.language_modelling.options import TrainingOptions
from longspan.tasks.language_modelling.parts import LOSSES, losses_of_parts, parts_of
from longspan.tasks.language_modelling.scores import LanguageScores
from longspan.tasks.language_modelling.segments import IGNORED, SegmentBatches, SegmentData, StreamedSegments
from longspan.training import processes
from longspan.training.arguments import data_seed
from longspan.training.base import LongspanTrainer
from longspan.training.lengths import Loader
from longspan.training.streams import BlockStream, Examples

#: Number of tokens of the validation split that the weights of a mixture are fitted to: more change them little.
_ENOUGH = 30_000


class SegmentTrainer(LongspanTrainer[LanguageScores]):
    """A `Trainer` whose rows read documents segment by segment and remember what they have read.

    Each step continues from the states of the previous one, detached from its gradients: what a segment costs does not
    depend on how many came before. A row that begins a document has an empty state. So has every row at the beginning
    of an epoch, even with a single document. A row begins where the previous row ends, so its past is in the state of
    another row, perhaps of another process. Without `carries` each segment is read from an empty state.

    The loss is the mean over the targets of all rows, processes and accumulated batches. Each process has its own rows;
    one process with the rows of all takes the same steps. Validation reads documents from their beginning, in separate
    states, and draws no random numbers, so when and whether it takes place changes nothing else.

    Each process adds a file with its states to each checkpoint, so that a run resumed in the middle of an epoch
    continues as if never interrupted.

    Args:
        segment_length: tokens that a row reads in one step.
        carries: whether states carry over from one segment to the next; the function of that name says for which models
            their size has a limit.
        end_id: the token around documents.
        pad_id: the token that pads the last segment of a document.
        max_eval_tokens: maximum number of tokens, ends of documents included, that `score` reads; 0 means all.
        read: makes tokens of the texts of streamed rows.
        kwargs: what `LongspanTrainer` takes; `per_device_train_batch_size` is the number of rows in a process. Data
            sets are those of `longspan.data.text.long_documents.tokenize_documents`.

    Raises:
        UserError: from `train`, when a checkpoint lacks matching states.
    """

    cut_streams: ClassVar[Mapping[str, int]] = {"input_ids": 0, "attention_mask": 0, "shift_labels": IGNORED}

    def __init__(
        self,
        *args: Any,
        segment_length: int,
        carries: bool,
        end_id: int,
        pad_id: int,
        max_eval_tokens: int = 0,
        read: Callable[[Sequence[str]], Sequence[np.ndarray]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.max_eval_tokens = max_eval_tokens
        self.segment_length = segment_length
        self.end_id = end_id
        self.pad_id = pad_id
        self.carries = carries
        self._states: MixerStates | None = None
        self.read = read

    def stream_batches(self, reader: ShardReader) -> tuple[Any, int]:
        documents = BlockStream(reader, self._documents_of)
        data = SegmentData([], self.segment_length, end_id=self.end_id, pad_id=self.pad_id)
        return StreamedSegments(documents, data, self._train_batch_size), len(self._batches())

    def _documents_of(self, rows: Sequence[Row], number: int) -> Sequence[np.ndarray]:
        """Tokens of the documents in the block of streamed rows with a number, in a random order."""
        assert self.read is not None
        order = np.random.default_rng((data_seed(self.args), number)).permutation(len(rows))
        return self.read([rows[place].values["text"] for place in order])

    def cut_rows(self, count: int) -> None:
        if self.carries:
            raise UserError(
                f"expected segments without carried states with training.context_parallel={count}, got "
                "training.carry_states=true; set it to false, and training.segment_length to the length of what is cut."
            )
        super().cut_rows(count)

    def get_train_dataloader(self) -> Loader:
        if self.stream is not None:
            return Loader(Examples(), batch_sampler=self.stream, pin_memory=self.pins)
        # No workers: there is nothing to wait for.
        documents = token_arrays(self.train_dataset)
        data = SegmentData(documents, self.segment_length, end_id=self.end_id, pad_id=self.pad_id)
        return Loader(data, batch_sampler=self._batches(), pin_memory=self.pins)

    def per_token_columns(self) -> Sequence[str]:
        return ("input_ids",)

    def batch_positions(self, epoch: int) -> list[int]:
        return [self._train_batch_size * self.segment_length] * len(self._batches())

    def padding_fraction(self) -> float:
        """Return the share of padding in an epoch's training batches, from 0 to 1."""
        lengths = self.train_dataset["length"][:]
        positions = len(self._batches()) * self._train_batch_size * self.group_count * self.segment_length
        return 1 - (sum(lengths) + len(lengths)) / positions

    def _batches(self) -> SegmentBatches:
        return SegmentBatches(
            self.train_dataset["length"][:],
            self._train_batch_size,
            self.segment_length,
            shuffle=True,
            seed=data_seed(self.args),
            rank=self.group_number,
            world=self.group_count,
        )

    @override
    def _prepare_inputs(self, inputs: dict[str, Any]) -> dict[str, Any]:
        # The model would wait for a GPU to see that nothing is hidden.
        whole = bool(inputs["attention_mask"].all())
        return super()._prepare_inputs(
            {name: x for name, x in inputs.items() if not (whole and name == "attention_mask")}
        )

    def compute_loss(
        self,
        model: torch.nn.Module,
        inputs: dict[str, Any],
        return_outputs: bool = False,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Return this batch's share of the mean loss in nats per target; see `Trainer`."""
        inputs = dict(inputs)
        rows = inputs.pop("reset")
        if self.carries:
            states = self._no_states() if self._states is None else self._states.reset(rows)
            inputs |= {"past_key_values": states, "use_cache": True}
        loss, outputs = super().compute_loss(model, inputs, True, num_items_in_batch)
        if self.carries:
            self._states = outputs[CACHE].detach()
        return (loss, outputs) if return_outputs else loss

    def _no_states(self) -> MixerStates:
        states: MixerStates = self.model.base_model.init_states(self._train_batch_size, device=self.args.device)
        return states

    def score(self, dataset: Dataset) -> LanguageScores:
        """The `language_scores` of the losses of documents, or of an `excerpt` of `max_eval_tokens`.

        Each process reads some of them. States are carried through a document; a model that carries none reads it in
        windows of `segment_length` tokens that overlap by half.
        """
        validation = dataset is self.eval_dataset
        if self._wide is not None and validation:
            # Before a checkpoint is saved, so that each one has its own; training does not depend on it.
            self._fit_gate(self._wide, dataset)
        scored = excerpt(dataset["length"][:], self.max_eval_tokens)
        if self._wide is None:
            return excerpt_scores(dataset, scored, self._outputs(dataset, losses_of, scored))
        losses = self._outputs(dataset, losses_of_parts, scored, LOSSES)
        documents = np.cumsum(scored)[:-1]
        found = parts_of(np.split(losses, documents))
        if validation and (best := found.best()) != BOTH:
            # The gate was fitted to some of these tokens.
            part = (NETWORK, COUNTS).index(best)
            self._wide.gate.keep_one(part)
            losses[:, 0] = losses[:, part + 1]
            found = parts_of(np.split(losses, documents))
        if validation:
            # Training fits the network alone.
            self.loss_as_trained = found.values[NETWORK]
        self.remember_parts(dataset, lambda: found)
        return excerpt_scores(dataset, scored, losses[:, 0])

    def scoring_sizes(self, dataset: Dataset) -> np.ndarray:
        return excerpt(dataset["length"][:], self.max_eval_tokens)

    def rehearse(self, dataset: Dataset) -> None:
        if self._wide is not None:
            # As the validation split would have it.
            self._fit_gate(self._wide, dataset)
        super().rehearse(dataset)

    @property
    def _wide(self) -> Mixture | None:
        wide: Mixture | None = self.model.wide
        return wide

    def _fit_gate(self, wide: Mixture, dataset: Dataset) -> None:
        few = excerpt(dataset["length"][:], min(_ENOUGH, self.max_eval_tokens or _ENOUGH))
        sizes = [len(wide.parts), wide.evidence_size]
        parts, evidence = torch.from_numpy(self._outputs(dataset, _mixed, few, sum(sizes))).split(sizes, 1)
        fit_gate(wide.gate, evidence, parts, wide.dim)

    def _outputs(self, dataset: Dataset, take: Callable[[Any], Tensor], scored: np.ndarray, *shape: int) -> np.ndarray:
        """Outputs for the first `scored` (d,) targets of each document, (n, *shape) float32.

        Each process reads some of them, and all get everything.
        """
        documents, ends = token_arrays(dataset), np.cumsum(scored)
        order = sorted(np.flatnonzero(scored).tolist(), key=lambda number: -scored[number])
        own = order[self.args.process_index :: self.args.world_size]
        found = token_outputs(
            self.model,
            [documents[number][: scored[number]] for number in own],
            take,
            rows=self.args.per_device_eval_batch_size,
            segment_length=self.segment_length,
            context="carried" if self.carries else "sliding",
            progress=self.reporting()["progress"],
        )
        values = np.zeros((ends[-1], *shape), dtype=np.float32)
        for number, row in zip(own, found, strict=True):
            # The end after the part of a document is not one of its targets.
            values[ends[number] - scored[number] : ends[number]] = row[: scored[number]]
        processes.sum_into(values)
        return values

    def save_state(self, checkpoint: Path) -> None:
        super().save_state(checkpoint)
        if self._states is not None:
            save_file(self._states.tensors(), self._states_file(checkpoint), {"processes": str(self.args.world_size)})

    def restore_state(self, checkpoint: Path) -> None:
        super().restore_state(checkpoint)
        if self.carries and not self.finishing:
            self._states = self._read_states(checkpoint)

    def _states_file(self, checkpoint: Path) -> Path:
        return checkpoint / f"states-{self.args.process_index}.safetensors"

    def _read_states(self, checkpoint: Path) -> MixerStates:
        """Return the saved states of this process's rows. Raises UserError unless they match this training run."""
        path = self._states_file(checkpoint)
        try:
            saved_by, tensors = _read_tensors(path if path.exists() else checkpoint / "states-0.safetensors")
            if saved_by != self.args.world_size:
                tensors = self._share(checkpoint, saved_by)
            states: MixerStates = self.model.base_model.states_from(tensors)
            if states.batch_size != self._train_batch_size:
                raise UserError(f"they have {states.batch_size} rows")
        except (FileNotFoundError, SafetensorError, UserError) as error:
            raise UserError(
                f"expected {path} to hold the states of {self._train_batch_size} rows in one of "
                f"{self.args.world_size} processes, got: {error}; resume with as many processes as before, or start "
                "again with --overwrite."
            ) from error
        return states

    def _share(self, checkpoint: Path, saved_by: int) -> dict[str, Tensor]:
        """Tensors of this process's rows, of states that another number of processes has saved."""
        paths = [checkpoint / f"states-{rank}.safetensors" for rank in range(saved_by)]
        if not paths or not all(path.exists() for path in paths):
            raise UserError(f"they were saved by {saved_by} processes, whose files are not all there")
        every = [_read_tensors(path)[1] for path in paths]
        first = self.args.process_index * self._train_batch_size
        own = slice(first, first + self._train_batch_size)
        # Rows follow each other from process to process; only the length is the same for all.
        return {
            name: torch.cat([each[name] for each in every])[own].clone() if one.ndim else one
            for name, one in every[0].items()
        }


def _read_tensors(path: Path) -> tuple[int, dict[str, Tensor]]:
    """Number of processes that saved a file of states, and its tensors."""
    with safe_open(path, "pt") as file:
        saved_by = int((file.metadata() or {}).get("processes", 0))
        return saved_by, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)


def _mixed(output: Any) -> Tensor:
    return torch.cat((output.parts, output.evidence), 2)


def carries(model: PreTrainedModel, options: TrainingOptions) -> bool:
    """Say whether a model's states are carried from segment to segment in training with these options.

    They are unless `carry_states` is false or their size has no limit. The state of softmax attention grows with the
    document and soon costs more than the rest of training.

    Raises:
        UserError: A mixer has no states at all.
    """
    model.base_model.init_states(1)
    bounded = all(block.mixer.bounded_state for block in model.base_model.backbone.layers)
    return bounded and options.carry_states


#: Steps of Adam with all tokens, and the rate of the first.
_STEPS, _RATE = 150, 0.02
#: Penalties, in nats for all tokens together, times the square of each weight: of most weights, and of those that read
#: the network's output, which is far longer than the rest of the evidence. Chosen on halves of validation splits.
_PENALTY, _PENALTY_OF_OUTPUTS = 10.0, 300.0


def fit_gate(gate: Gate, evidence: Float[Tensor, "n e"], parts: Float[Tensor, "n k"], outputs: int) -> None:
    """Fit a gate so that the mixture predicts these tokens best; the same for equal tokens.

    Args:
        gate: The gate, changed in place.
        evidence: Its input at each token.
        parts: log p of each token in each part.
        outputs: Number of the last values of the evidence that are the network's output.
    """
    evidence, parts = evidence.float(), parts.float()
    mean, deviation = evidence.mean(0), evidence.std(0, correction=0)
    deviation = torch.where(deviation > 1e-6, deviation, 1.0)
    standard = (evidence - mean) / deviation
    learned = [tensor.requires_grad_() for tensor in _started(gate, outputs)]
    inner, outer = learned[::2]
    optimizer = torch.optim.Adam(learned, _RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 * (1 + math.cos(math.pi * step / _STEPS)))
    unchanged = [torch.zeros(gate.size), torch.ones(gate.size)]
    few = gate.size - outputs
    with torch.enable_grad():
        for _ in range(_STEPS):
            loss = mixed(standard, parts, [*unchanged, *learned]).mean()
            rest = _PENALTY * (inner[:, :few].square().sum() + outer.square().sum())
            loss = loss + (rest + _PENALTY_OF_OUTPUTS * inner[:, few:].square().sum()) / len(evidence)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
    for buffer, tensor in zip(gate.buffers(), [mean, deviation, *learned], strict=True):
        buffer.copy_(tensor.detach())


def mixed(
    evidence: Float[Tensor, "n e"], parts: Float[Tensor, "n k"], tensors: Sequence[Tensor]
) -> Float[Tensor, " n"]:
    """Return the losses in nats of a mixture whose gate has these tensors."""
    return -(parts + log_weights(evidence, tensors)).logsumexp(-1)


def _started(gate: Gate, outputs: int) -> list[Tensor]:
    """Return the weights that fitting starts from: equal parts, and small random ones of all but the outputs."""
    random, few = torch.Generator().manual_seed(0), gate.size - outputs
    inner = torch.randn(gate.inner.shape, generator=random) / max(1, few) ** 0.5
    inner[:, few:] = 0
    return [inner, torch.zeros(len(inner)), torch.zeros(gate.outer.shape), torch.zeros(gate.parts)]
