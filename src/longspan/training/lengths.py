"""Training on documents of any length, and scoring them, in batches of similar length."""

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import numpy as np
import pyarrow as pa
import torch
from datasets import Dataset, Value
from datasets.utils import tqdm
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset
from transformers import PreTrainedModel

from longspan.data.batches.by_length import LengthBatches, padding_fraction
from longspan.data.batches.drawn import DrawnExamples, EpochBatches
from longspan.data.batches.encoding import lengths
from longspan.data.batches.streams import Stream, measured, nothing, pad
from longspan.data.sources.formats.schema import Row
from longspan.data.sources.shards import ShardReader
from longspan.errors import UserError
from longspan.models.model import LongspanPreTrainedModel
from longspan.models.parts.losses import IGNORED, unknown_labels
from longspan.results.scores import S
from longspan.training import processes
from longspan.training.arguments import data_seed
from longspan.training.base import LongspanTrainer
from longspan.training.encoder_outputs import COMPUTED, EncoderOutputs, WithOutputs
from longspan.training.streams import BlockStream, Examples

T = TypeVar("T")


class EpochSampler(Sampler[T]):
    """Batches that differ from epoch to epoch, of which `Loader` tells the number, from 0."""

    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch."""
        self.epoch = epoch


class Loader(DataLoader[Any]):
    """A loader of batches that a batch sampler has already shared among processes.

    It tells the sampler about epochs, which the Trainer tells only to loaders. Accelerate, which usually prepares
    loaders, is not involved. It would deal entire batches to processes, the longest documents to one and the shortest
    to another, and fill the last round with repeated rows.
    """

    batch_sampler: Any

    def set_epoch(self, epoch: int) -> None:
        self.batch_sampler.set_epoch(epoch)


class NumberRows(TorchDataset[dict[str, Any]]):
    """Rows of a data set of numbers and lists of numbers, as in NumPy's format, without its time for each row.

    Numbers stay in the file of the data set until their row is read.

    Args:
        dataset: The data set.
    """

    def __init__(self, dataset: Dataset) -> None:
        table = dataset.with_format("arrow")[:]
        self._ends = np.cumsum([len(chunk) for chunk in table.column(0).chunks]).tolist()
        self._columns = {name: [_numbers(chunk) for chunk in table[name].chunks] for name in table.column_names}

    @classmethod
    def of(cls, rows: Any) -> Any:
        """Rows of a data set whose columns are all numbers, or lists of them; other rows as they are."""
        if not isinstance(rows, Dataset) or not len(rows):
            return rows
        kinds = [getattr(feature, "feature", feature) for feature in rows.features.values()]
        numbers = [isinstance(kind, Value) and kind.dtype.startswith(("int", "uint", "float")) for kind in kinds]
        return cls(rows) if all(numbers) else rows

    def __len__(self) -> int:
        return int(self._ends[-1])

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        starts, chunks = [0, *self._ends], np.searchsorted(self._ends, rows, "right")
        found: list[dict[str, Any]] = [{} for _ in rows]
        for name, column in self._columns.items():
            for values, row, chunk in zip(found, rows, chunks.tolist(), strict=True):
                numbers, offsets, kind = column[chunk]
                place = row - starts[chunk]
                own = numbers[place] if offsets is None else numbers[offsets[place] : offsets[place + 1]]
                values[name] = own.astype(kind)
        return found


def _numbers(chunk: Any) -> tuple[np.ndarray, np.ndarray | None, type]:
    """Values of a chunk of arrow, where each row begins if these are lists, and the type of NumPy's format."""
    lists = not isinstance(chunk, pa.NumericArray)
    # Offsets count from the start of all values, even where the chunk is a part of a longer one.
    values = (chunk.values if lists else chunk).to_numpy()
    kind = np.int64 if np.issubdtype(values.dtype, np.integer) else np.float32
    return values, chunk.offsets.to_numpy() if lists else None, kind


Rows: TypeAlias = Dataset | WithOutputs


def _unmeasured(outputs: Any, labels: Any) -> Any:
    raise NotImplementedError("a LengthTrainer without `measure` needs a `score` of its own.")


class LengthTrainer(LongspanTrainer[S]):
    """A `Trainer` that batches by length.

    In each step, all processes read documents of similar length.

    Args:
        batch_tokens: maximum number of tokens per batch and process, padding included (a longer document forms a batch
            of its own); 0 for no limit.
        streams: the streams that the model reads, by name, the main one first, and that labels are, if they are one.
        measure: computes scores from the model's outputs (n, ...) and the labels (n, ...) of a data set; not needed in
            a subclass with its own `score`.
        output: which of the model's outputs those are.
        drawn: what training reads in place of its data set, as many examples that are drawn again in each epoch; None
            for the data set. Batches are made by the lengths of the data set, so that batches of `batch_tokens` are
            sometimes a little larger.
        read: makes examples of streamed rows.
        kwargs: arguments of `LongspanTrainer`. Data sets have the streams, the lengths of those that are `measured`,
            and `labels`.

    Raises:
        UserError: for a frozen encoder with streamed rows. And from the first use of the training batches, when there
            are fewer documents than processes, or groups of them that read slices of the same rows.
    """

    def __init__(
        self,
        *args: Any,
        batch_tokens: int,
        streams: Mapping[str, Stream],
        measure: Callable[[Any, Any], S] = _unmeasured,
        output: str = "logits",
        drawn: DrawnExamples[dict[str, Any]] | None = None,
        read: Callable[[Sequence[Row]], list[dict[str, Any]]] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, data_collator=Collator(streams), **kwargs)
        self.batch_tokens = batch_tokens
        self.streams = streams
        self.masks = [stream.mask for stream in streams.values() if stream.mask]
        self.output, self.drawn = output, drawn
        self.measure = measure
        frozen = self.model.frozen_encoder if isinstance(self.model, LongspanPreTrainedModel) else None
        self.encoder_outputs = None if frozen is None else EncoderOutputs(frozen)
        self.read = read
        if self.streamed is not None and self.encoder_outputs is not None:
            raise UserError(
                "expected data that are stored for a frozen model.encoder, whose outputs are computed once, got "
                "data.streaming=true; leave one of them out."
            )

    def stream_batches(self, reader: ShardReader) -> tuple[Any, int]:
        return BlockStream(reader, self._batches_of), len(self._training_batches(self.group_number))

    def get_train_dataloader(self) -> Loader:
        if self.stream is not None:
            return Loader(Examples(), batch_sampler=self.stream, collate_fn=self.data_collator, pin_memory=self.pins)
        documents = NumberRows.of(self.rows(self.train_dataset, list(dict.fromkeys([*self.streams, "labels"]))))
        batches = self._training_batches(self.group_number)
        return Loader(
            documents if self.drawn is None else self.drawn,
            batch_sampler=batches if self.drawn is None else EpochBatches(batches),
            collate_fn=_Share(self.data_collator, documents[0]),
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.pins,
        )

    def padding_fraction(self) -> float:
        """Return the share of padding in an epoch's training batches of all processes, from 0 to 1."""
        batches = [batch for rank in range(self.group_count) for batch in self._training_batches(rank) if batch]
        return padding_fraction(batches, self.lengths(self.train_dataset))

    def batch_positions(self, epoch: int) -> list[int]:
        """Number of positions, padding included, of each batch of an epoch in this process, in order."""
        batches = self._training_batches(self.group_number)
        batches.set_epoch(epoch)
        return [batches.positions(batch) if batch else 0 for batch in batches]

    def cut_rows(self, count: int) -> None:
        if not {*self.streams, "labels"} <= {*self.cut_streams, "labels", "attention_mask"}:
            self.cut_streams = {}  # type: ignore[misc]
        super().cut_rows(count)

    def lengths(self, dataset: Dataset) -> np.ndarray:
        """Return the lengths by which rows of a data set are batched, `(n,)` or `(n, 2)`."""
        return lengths(dataset)

    def scoring_sizes(self, dataset: Dataset) -> np.ndarray:
        return self.lengths(dataset).reshape(len(dataset), -1).sum(1)

    def score(self, dataset: Dataset) -> S:
        """Return the scores that `measure` computes from the outputs for a data set. All processes share the work."""
        return self.measure(self.outputs(dataset), targets(dataset))

    def per_token_columns(self) -> Sequence[str]:
        # Cut, a graph would have edges to nodes that it lacks. Two documents have ends of their own.
        whole = len(measured(self.streams)) > 1 or any(stream.joined for stream in self.streams.values())
        return () if whole else list(self.streams)

    def rehearse(self, dataset: Dataset) -> None:
        """Compute the outputs for a data set; a part of one might have no scores."""
        self.outputs(dataset)

    def rows(self, dataset: Dataset, columns: list[str]) -> Rows:
        """The model's inputs from a data set, with the outputs of its encoder if that is frozen."""
        there = [name for name in columns if name in dataset.column_names]
        return self.with_encoder_outputs(dataset.select_columns(there).with_format("numpy"), dataset)

    def with_encoder_outputs(self, rows: Dataset, dataset: Dataset) -> Rows:
        """Return rows of a data set, which has the main stream and `length`, as `rows` does."""
        if self.encoder_outputs is None:
            return rows
        # What is rehearsed is a part of a data set, of which nothing is stored.
        return self.encoder_outputs.joined_to(rows, dataset, stand_ins=self._rehearses)

    def outputs(self, dataset: Dataset, name: str = "") -> Tensor:
        """Return the model's outputs for a data set, (n, ...): see the function `outputs`."""
        return outputs(
            self.model,
            self.rows(dataset, [name for name in self.streams if name != "labels"]),
            name=name or self.output,
            **self.scoring(dataset),
        )

    def scoring(self, dataset: Dataset) -> dict[str, Any]:
        """Arguments of functions that compute a model's outputs for a data set: `reporting`, batches and streams."""
        batches = scoring_batches(self.lengths(dataset), self.args.eval_batch_size, self.batch_tokens)
        return {"batches": batches, "streams": self.streams, **self.reporting()}

    def _batches_of(self, rows: Sequence[Row], number: int) -> list[list[dict[str, Any]]]:
        """Batches of examples of similar length, of the block of streamed rows with a number."""
        assert self.read is not None
        examples, names = self.read(rows), measured(self.streams)
        lengths = np.array([[len(example[name]) for name in names] for example in examples])
        batches = LengthBatches(
            lengths[:, 0] if len(names) == 1 else lengths,
            self._train_batch_size,
            max_tokens=self.batch_tokens,
            shuffle=True,
            seed=data_seed(self.args),
        )
        batches.set_epoch(number)
        return [[examples[row] for row in batch] for batch in batches]

    def _training_batches(self, rank: int) -> LengthBatches:
        if len(self.train_dataset) < self.group_count:
            groups = "processes" if self.slices is None else f"groups of {self.slices.count} processes"
            raise UserError(
                f"expected a document for each of {self.group_count} {groups}, got {len(self.train_dataset)} to train "
                "on; start fewer processes."
            )
        return LengthBatches(
            self.lengths(self.train_dataset),
            self._train_batch_size,
            max_tokens=self.batch_tokens,
            shuffle=True,
            seed=data_seed(self.args),
            drop_last=self.args.dataloader_drop_last,
            rank=rank,
            world=self.group_count,
        )


def scoring_batches(lengths: Sequence[int] | np.ndarray, batch_size: int, batch_tokens: int) -> list[list[int]]:
    """Group documents of similar length into batches of row numbers, the longest first.

    Args:
        lengths: (n,) lengths in tokens, or (n, 2), see `LengthBatches`.
        batch_size: maximum number of rows per batch.
        batch_tokens: maximum number of tokens per batch, padding included (a longer document forms a batch of its own);
            0 for no limit.
    """
    if len(lengths) == 1:
        return [[0]]
    return list(LengthBatches(lengths, batch_size, max_tokens=batch_tokens, shuffle=False))


def targets(dataset: Dataset) -> Tensor:
    """Return the labels of a data set as one tensor, (n, ...); those of several lengths end with `IGNORED`."""
    # Through numpy: lists of Python numbers take many times the memory.
    found = dataset.with_format("numpy")["labels"][:]
    if isinstance(found, np.ndarray) and found.dtype != object:
        return torch.tensor(found)
    rows = [torch.tensor(row) for row in found]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED) if rows else torch.zeros(0)


@torch.no_grad()
def outputs(
    model: PreTrainedModel,
    examples: Rows | Sequence[dict[str, Any]],
    batches: Sequence[Sequence[int]],
    *,
    streams: Mapping[str, Stream],
    name: str = "logits",
    progress: bool = False,
    after_batch: Callable[[], None] | None = None,
) -> Tensor:
    """Return a model's outputs for documents. Several processes share the batches, and all get all of them.

    Args:
        model: the model, switched to evaluation mode for the call.
        examples: n rows with the streams that the model reads.
        batches: row numbers, each exactly once; the same in all processes.
        streams: those streams; examples may lack some, and labels are not read.
        name: which outputs, such as "logits", or "parts" of a model with two.
        progress: whether to show a progress bar on standard error.
        after_batch: called after each batch.

    Returns:
        (n, ...) float32 on the CPU, in the order of `examples`, regardless of the order of `batches`; outputs of
        several sizes end with `IGNORED`. Without examples, (0, num_labels), or (0, 2, num_labels) for "parts".

    Raises:
        UserError: when another process stopped.
    """

    forward = _forward(model, examples, streams)
    found = in_batches(
        model, batches, lambda batch: forward(batch)[name].float().cpu(), progress=progress, after_batch=after_batch
    )
    shapes = [part.shape[1:] for _, part in found] or [(*([2] if name == "parts" else []), model.config.num_labels)]
    shape = [max(sizes) for sizes in zip(*shapes, strict=True)]
    result = torch.zeros(len(examples), *shape)
    for batch, part in found:
        result[torch.as_tensor(batch)] = _widened(part, shape)
    return result


def _widened(rows: Tensor, shape: Sequence[int]) -> Tensor:
    """Return rows of `shape`, those of smaller ones ended with `IGNORED`."""
    missing = [wanted - own for own, wanted in zip(rows.shape[1:], shape, strict=True)]
    if not any(missing):
        return rows
    return torch.nn.functional.pad(rows, [edge for size in reversed(missing) for edge in (0, size)], value=IGNORED)


@torch.no_grad()
def ragged_outputs(
    model: PreTrainedModel,
    examples: Rows | Sequence[dict[str, Any]],
    batches: Sequence[Sequence[int]],
    sizes: Sequence[int],
    *,
    name: str | Sequence[str],
    streams: Mapping[str, Stream],
    shape: tuple[int, ...] = (),
    dtype: torch.dtype = torch.float32,
    progress: bool = False,
    after_batch: Callable[[], None] | None = None,
) -> Tensor:
    """Return a model's outputs for each token, or each part, of documents, one document after the other.

    Args:
        sizes: number of outputs of each example that count: the first ones of its row.
        name: which outputs, `(b, m, *shape)`; several, `(b, m)` each, are the columns of `(b, m, k)`.
        shape: what there is for each token or part.
        dtype: type of the result.
        model, examples, batches, streams, progress, after_batch: see `outputs`.

    Returns:
        (sum of sizes, *shape) on the CPU, in the order of `examples`.

    Raises:
        UserError: when another process stopped.
    """
    ends, forward = np.cumsum(sizes), _forward(model, examples, streams)
    result = torch.zeros(int(ends[-1]) if len(ends) else 0, *shape, dtype=dtype)

    def fill(batch: Sequence[int]) -> None:
        found = forward(batch)
        wanted = found[name] if isinstance(name, str) else torch.stack([found[each] for each in name], -1)
        values = wanted.to("cpu", dtype)
        for place, row in enumerate(batch):
            result[ends[row] - sizes[row] : ends[row]] = values[place, : sizes[row]]

    in_batches(model, batches, fill, progress=progress, after_batch=after_batch)
    processes.sum_into(result.numpy())
    return result


@contextlib.contextmanager
def in_evaluation(model: torch.nn.Module) -> Iterator[None]:
    """Keep a model in evaluation mode in the `with` block."""
    if not model.training:
        # Switching all modules takes as long as a short text, and other threads may use them.
        yield
        return
    model.eval()
    try:
        yield
    finally:
        model.train()


def in_batches(
    model: PreTrainedModel,
    batches: Sequence[Sequence[int]],
    compute: Callable[[Sequence[int]], T],
    *,
    progress: bool = False,
    after_batch: Callable[[], None] | None = None,
    what: str = "Scoring",
) -> list[tuple[Sequence[int], T]]:
    """Results of a function of row numbers for each batch. Several processes share the batches, and all get all.

    Args:
        model: a model, in evaluation mode meanwhile.
        batches: row numbers; the same in all processes.
        compute: the function.
        progress: whether to show a progress bar on standard error.
        after_batch: called after each batch.
        what: what the bar says.

    Raises:
        UserError: when another process stopped.
    """

    def own_results() -> list[tuple[Sequence[int], T]]:
        own, found = batches[processes.rank() :: processes.count()], []
        # Below the bar of a training run, this one disappears when it is full.
        for batch in tqdm(own, desc=what, unit="batch", leave=None) if progress else own:
            found.append((batch, compute(batch)))
            if after_batch is not None:
                after_batch()
        return found

    with in_evaluation(model):
        return processes.gathered(processes.in_each(own_results))


def _forward(
    model: PreTrainedModel, examples: Rows | Sequence[dict[str, Any]], streams: Mapping[str, Stream]
) -> Callable[[Sequence[int]], Any]:
    """Function from the numbers of examples to the model's outputs for these."""
    read = {name: stream for name, stream in {**streams, **COMPUTED}.items() if name != "labels"}
    device, read_rows = model.device, NumberRows.of(examples)

    def forward(batch: Sequence[int]) -> Any:
        rows = read_rows.__getitems__(batch) if isinstance(read_rows, NumberRows) else [examples[row] for row in batch]
        padded = pad([{name: row[name] for name in read if name in row} for row in rows], read)
        return model(**{key: tensor.to(device) for key, tensor in padded.items()})

    return forward


class Collator:
    """Pads the streams of examples, and what was computed of them, on the right, and stacks what else they have."""

    def __init__(self, streams: Mapping[str, Stream]) -> None:
        self.streams = {**streams, **COMPUTED}

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        batch = pad(examples, self.streams)
        others = [name for name in examples[0] if name not in batch]
        return batch | {name: torch.from_numpy(np.stack([each[name] for each in examples])) for name in others}


class _Share:
    """Collates a process's share of a batch.

    A share without rows becomes a batch of padding without known labels, as all processes take part in every step.
    """

    def __init__(self, collator: "Collator", spare: dict[str, Any]) -> None:
        self.collator = collator
        self.spare = spare

    def __call__(self, examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        if examples:
            return self.collator(examples)
        batch = nothing(self.spare, self.collator.streams)
        return {**batch, "labels": unknown_labels(batch["labels"])}
