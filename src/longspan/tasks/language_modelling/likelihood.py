"""Losses of documents under a language model: `token_losses`, and its other outputs for each token."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from datasets.utils import tqdm
from torch import Tensor
from transformers import PreTrainedModel

from longspan.errors import UserError, check_choice
from longspan.mixers.base import Mixer
from longspan.models.states import CACHE
from longspan.training.lengths import in_evaluation

CONTEXTS = ("carried", "sliding")


def token_losses(
    model: PreTrainedModel, documents: Sequence[Sequence[int] | np.ndarray], **reading: Any
) -> list[np.ndarray]:
    """Return the loss of every token of every document in nats, `(n + 1,)` float32; see `token_outputs`."""
    return token_outputs(model, documents, losses_of, **reading)


def losses_of(output: Any) -> Tensor:
    """Return the losses of a model's output, for `token_outputs`."""
    losses: Tensor = output.losses
    return losses


@torch.no_grad()
def token_outputs(
    model: PreTrainedModel,
    documents: Sequence[Sequence[int] | np.ndarray],
    take: Callable[[Any], Tensor],
    *,
    rows: int,
    segment_length: int,
    context: str = "carried",
    window: int = 0,
    stride: int = 0,
    progress: bool = False,
) -> list[np.ndarray]:
    """Outputs of a model for every token of every document, such as its loss.

    A document t1 .. tn is fed as [end] t1 .. tn and has n + 1 targets, t1 .. tn [end], `end` being the model's
    `eos_token_id`. With `context="carried"` it is read segment by segment, and the states of the mixers are carried
    from one to the next: each token is read once, and sees as far back as the mixers remember. With "sliding" the
    model starts from scratch in each window of at most `window` tokens, as it must where nothing is remembered: the
    first window of a document gives `window` targets, each further one begins `stride` tokens later and gives the
    `stride` targets that are new. A target is then predicted from the `window - stride + 1` to `window` tokens before
    it, or from all where there are fewer; `stride=1` gives each as many as possible, at a cost of `window` tokens a
    target.

    Args:
        model: A `LongspanForCausalLM`, put into evaluation mode for the call. It keeps no states of these documents.
        documents: Token ids of each document, without end tokens; long and short ones share batches.
        take: Selects from the model's output for a batch: `(b, t, ...)` of its targets.
        rows: Documents, or windows, in a batch. Sets the memory needed and the speed, not the losses.
        segment_length: Tokens read at a time with carried states.
        context: "carried" or "sliding".
        window: Tokens in a window; 0 is `segment_length`. Only with "sliding".
        stride: Tokens from one window to the next; 0 is half a window. Only with "sliding".
        progress: Whether to show a bar on standard error.

    Returns:
        For each document what is wanted of its n + 1 targets, `(n + 1, ...)` float32, in token order.

    Raises:
        UserError: Impossible numbers, or a model without an end token.
    """
    window, stride = _check(rows, segment_length, context, window, stride)
    end = getattr(model.config, "eos_token_id", None)
    if end is None:
        raise UserError(
            "expected a model whose config.json has an eos_token_id, which ends documents, got one without; add it."
        )
    tokens = [np.asarray(document) for document in documents]
    every: list[np.ndarray | None] = [None for _ in tokens]
    texts = _Texts(tokens, int(end))
    scored = (
        _carried(model, texts, take, rows, segment_length)
        if context == "carried"
        else _sliding(model, texts, take, rows, window, stride)
    )
    total = sum(len(each) + 1 for each in tokens)
    # Below the bar of a training run, this one disappears when it is full.
    bar = tqdm(total=total, desc="Scoring", unit=" tokens", leave=None, disable=not progress)
    with in_evaluation(model), bar:
        for number, start, found in scored:
            values = every[number]
            if values is None:
                values = every[number] = np.empty((len(tokens[number]) + 1, *found.shape[1:]), dtype=np.float32)
            values[start : start + len(found)] = found
            bar.update(len(found))
    return [values for values in every if values is not None]


def set_attention_length(model: PreTrainedModel, length: int) -> None:
    """Let every mixer of `model` with a memory remember the last `length` positions of what `step` has seen.

    Transformer-XL is evaluated with longer memories than it was trained with. States created from now on have it.

    Raises:
        UserError: `length` is negative, or the model has no such mixer.
    """
    found = [module for module in model.modules() if isinstance(module, Mixer) and module.memory is not None]
    if length < 0:
        raise UserError(f"expected an attention length of 0 or more, got {length}; choose a larger one.")
    if not found:
        raise UserError(
            "expected a model with mixers that have a memory, such as `relative`, for an attention length, got one "
            "without; leave it out."
        )
    for mixer in found:
        mixer.set_memory(length)


def attention_length(model: PreTrainedModel) -> int | None:
    """Return the largest number of positions that a mixer with a memory remembers; None without such a mixer."""
    lengths = [module.memory for module in model.modules() if isinstance(module, Mixer)]
    return max((length for length in lengths if length is not None), default=None)


def _check(rows: int, segment_length: int, context: str, window: int, stride: int) -> tuple[int, int]:
    """Return window and stride with their defaults filled in."""
    check_choice("context", context, CONTEXTS)
    for name, value, least in (
        ("rows", rows, 1),
        ("segment_length", segment_length, 1),
        ("window", window, 0),
        ("stride", stride, 0),
    ):
        if value < least:
            raise UserError(f"{name} must be at least {least}, got {value}; choose a larger one.")
    if context == "carried":
        if window or stride:
            raise UserError(
                f"expected context='sliding' with window={window} and stride={stride}, got 'carried'; leave them out, "
                "or change the context."
            )
        return 0, 0
    window = window or segment_length
    if stride > window:
        raise UserError(f"expected a stride of at most the window, {window}, got {stride}; make it smaller.")
    return window, stride or (window + 1) // 2


class _Texts:
    """Documents as inputs, [end] t1 .. tn, and targets, t1 .. tn [end]."""

    def __init__(self, documents: Sequence[np.ndarray], end: int) -> None:
        self.documents = documents
        self.end = end
        # The longest first, so that documents in one batch are of similar length.
        self.order = sorted(range(len(documents)), key=lambda number: -len(documents[number]))

    def length(self, number: int) -> int:
        return len(self.documents[number]) + 1

    def inputs(self, number: int, start: int, stop: int) -> np.ndarray:
        document = self.documents[number]
        return document[start - 1 : stop - 1] if start else np.concatenate(([self.end], document[: stop - 1]))

    def targets(self, number: int, start: int, stop: int) -> np.ndarray:
        document = self.documents[number]
        return document[start:stop] if stop <= len(document) else np.concatenate((document[start:], [self.end]))


_Scored = Iterator[tuple[int, int, np.ndarray]]  # document, offset of the first target, what is wanted


def _carried(model: PreTrainedModel, texts: _Texts, take: Callable[[Any], Tensor], rows: int, length: int) -> _Scored:
    """Read `rows` documents side by side, from the start; when one ends, the others continue.

    Documents come in the order of their lengths, so this takes at most twice the steps of rows that are never empty. No
    row begins in the middle of another's memory, which would otherwise grow with all that is read.
    """
    for first in range(0, len(texts.order), rows):
        reading, start, states = texts.order[first : first + rows], 0, None
        while reading:
            stops = [min(start + length, texts.length(number)) for number in reading]
            spans = [(number, start, stop) for number, stop in zip(reading, stops, strict=True)]
            inputs, targets = ([part(*span) for span in spans] for part in (texts.inputs, texts.targets))
            found, states = _forward(model, take, inputs, targets, states, True)
            for (number, _, stop), row in zip(spans, found, strict=True):
                yield number, start, row[: stop - start]
            start += length
            left = [row for row, number in enumerate(reading) if start < texts.length(number)]
            if left and len(left) < len(reading):
                states.reorder_cache(torch.tensor(left, device=model.device))
            reading = [reading[row] for row in left]


def _sliding(
    model: PreTrainedModel, texts: _Texts, take: Callable[[Any], Tensor], rows: int, window: int, stride: int
) -> _Scored:
    batch: list[tuple[int, int, int, int]] = []

    def score() -> _Scored:
        targets = []
        for number, start, new, stop in batch:
            wanted = texts.targets(number, start, stop).astype(np.int64)
            wanted[: new - start] = -100
            targets.append(wanted)
        inputs = [texts.inputs(number, start, stop) for number, start, _, stop in batch]
        found, _ = _forward(model, take, inputs, targets, None, False)
        for (number, start, new, stop), row in zip(batch, found, strict=True):
            yield number, new, row[new - start : stop - start]

    for one in _windows(texts, window, stride):
        batch.append(one)
        if len(batch) == rows:
            yield from score()
            batch = []
    if batch:
        yield from score()


def _windows(texts: _Texts, window: int, stride: int) -> Iterator[tuple[int, int, int, int]]:
    """Yield the document of each window, where it starts, from where on its targets are new, and where it stops."""
    for number in texts.order:
        start = new = 0
        while new < texts.length(number):
            stop = min(start + window, texts.length(number))
            yield number, start, new, stop
            start, new = start + stride, stop


def _forward(
    model: PreTrainedModel,
    take: Callable[[Any], Tensor],
    inputs: Sequence[np.ndarray],
    targets: Sequence[np.ndarray],
    states: Any,
    carry: bool,
) -> tuple[np.ndarray, Any]:
    """Outputs, (b, t, ...) float32 with rows padded on the right, and the states if they `carry` on."""
    width = max(map(len, inputs))
    ids = torch.zeros(len(inputs), width, dtype=torch.int64)
    wanted = torch.full_like(ids, -100)
    mask = torch.zeros_like(ids)
    for row, (given, asked) in enumerate(zip(inputs, targets, strict=True)):
        ids[row, : len(given)] = torch.from_numpy(given.astype(np.int64))
        wanted[row, : len(asked)] = torch.from_numpy(asked.astype(np.int64))
        mask[row, : len(given)] = 1
    output = model(
        input_ids=ids.to(model.device),
        # No mask without padding: mixers then take a shorter path.
        attention_mask=None if bool(mask.all()) else mask.to(model.device),
        shift_labels=wanted.to(model.device),
        past_key_values=states,
        use_cache=carry,
        # Otherwise the scores of a large vocabulary would all be held at once.
        logits_to_keep=1,
    )
    return take(output).float().cpu().numpy(), output.get(CACHE)
