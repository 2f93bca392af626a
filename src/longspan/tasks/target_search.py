"""From sources to targets: greedy and beam search in batches of similar length, and the losses of given targets."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from datasets import Dataset
from datasets.utils import tqdm
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel

from longspan.data.batches.streams import Stream, pad
from longspan.models.limits import limits
from longspan.models.losses import IGNORED
from longspan.training import processes
from longspan.training.lengths import computed_together, scoring_batches

#: A target has at most `RATIO` times the tokens of its source and `MORE`, unless it is said how many.
RATIO, MORE = 2, 20


@dataclass(frozen=True)
class Search:
    """How targets are searched for.

    Attributes:
        beams: Number of beams; 1 is greedy search.
        best: Number of targets of each source.
        length_penalty: Exponent of the length by which the log probability of a beam is divided.
        most: Maximum number of tokens; None for one that depends on the source.
        once: Number of tokens in a row that occur only once in a target; 0 for no such limit.
        batch_size: Maximum number of beams in a batch.
        batch_tokens: Maximum number of positions of sources and targets in a batch; 0 for no limit.
    """

    beams: int
    best: int = 1
    length_penalty: float = 1.0
    most: int | None = None
    once: int = 0
    batch_size: int = 64
    batch_tokens: int = 0

    def longest(self, sources: Sequence[int], model: PreTrainedModel) -> np.ndarray:
        """Return the maximum number of tokens of each target, end token not included, from those of sources."""
        lengths = np.asarray(sources, dtype=np.int64)
        found = RATIO * lengths + MORE if self.most is None else np.full(len(lengths), self.most)
        fits = most_targets(model)
        # The start token takes a position, the end token none.
        return found if fits is None else np.minimum(found, fits - 1)


def most_targets(model: PreTrainedModel) -> int | None:
    """Return how many tokens a target may have, end token included; None for any number."""
    return min((limit.tokens for limit in limits(model.get_decoder())), default=None)


class _Ends(LogitsProcessor):
    """Ends each target at its own maximum, whatever the others in the batch do.

    Args:
        longest: (b,) maximum number of tokens.
        end: The end token.
    """

    def __init__(self, longest: np.ndarray, end: int) -> None:
        self.longest, self.end = torch.from_numpy(longest), end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        beams = len(scores) // len(self.longest)
        full = (self.longest <= input_ids.shape[1] - 1).to(scores.device).repeat_interleave(beams)
        only = torch.full_like(scores, -torch.inf)
        only[:, self.end] = 0
        return torch.where(full[:, None], only, scores)


def search(
    model: PreTrainedModel,
    sources: Sequence[Sequence[int]],
    how: Search,
    stream: Stream,
    *,
    progress: bool = False,
    after_batch: Callable[[], None] | None = None,
) -> list[list[list[int]]]:
    """Return the `how.best` targets of each source as token ids, without start and end, best first.

    Several processes share the batches, and all get all of them.

    Args:
        model: An encoder-decoder model.
        sources: (n, ...) token ids.
        how: How to search.
        stream: What pads them.
        progress: Whether to show a progress bar on standard error.
        after_batch: Called after each batch.
    """
    if not len(sources):
        return []
    lengths = [len(source) for source in sources]
    longest = how.longest(lengths, model)
    size = max(1, how.batch_size // how.beams)
    both = np.stack([np.asarray(lengths), longest], 1)
    batches = scoring_batches(both, size, how.batch_tokens // how.beams)
    end = model.generation_config.eos_token_id

    # One after the other, as a single long source would make a table of all of them large.
    ends = np.cumsum(np.repeat(longest + 1, how.best))

    def compute() -> Tensor:
        # Ids plus one: 0 is nothing, so that processes can add up what they found.
        found = torch.zeros(int(ends[-1]), dtype=torch.int32)
        for batch in _shown(batches, progress, "Generating"):
            padded = pad([{"input_ids": sources[row]} for row in batch], {"input_ids": stream})
            made = model.generate(
                **{name: tensor.to(model.device) for name, tensor in padded.items()},
                num_beams=how.beams,
                num_return_sequences=how.best,
                do_sample=False,
                length_penalty=how.length_penalty,
                no_repeat_ngram_size=how.once,
                max_new_tokens=int(longest[batch].max()) + 1,
                logits_processor=LogitsProcessorList([_Ends(longest[batch], end)]),
            )
            # The first one is the start.
            for place, ids in enumerate(made[:, 1:].cpu()):
                stop = (ids == end).nonzero()
                ids = ids[: int(stop[0, 0])] if len(stop) else ids
                row = batch[place // how.best]
                start = int(ends[row * how.best + place % how.best] - longest[row] - 1)
                found[start : start + len(ids)] = ids + 1
            if after_batch is not None:
                after_batch()
        return found

    rows = np.split(computed_together(model, compute).numpy(), ends[:-1])
    texts = [(ids[ids > 0] - 1).tolist() for ids in rows]
    return [texts[start : start + how.best] for start in range(0, len(texts), how.best)]


@torch.no_grad()
def target_losses(
    model: PreTrainedModel,
    examples: Any,
    batches: Sequence[Sequence[int]],
    streams: Mapping[str, Stream],
    *,
    progress: bool = False,
    after_batch: Callable[[], None] | None = None,
) -> np.ndarray:
    """Return the nats of each target, summed over its tokens, and their number, (n, 2) float64.

    Several processes share the batches, and all get all of them.

    Args:
        model: An encoder-decoder model.
        examples: n rows with the streams.
        batches: Row numbers, each exactly once.
        streams: `input_ids` and `labels`.
        progress: Whether to show a progress bar on standard error.
        after_batch: Called after each batch.
    """

    def compute() -> Tensor:
        found = torch.zeros(len(examples), 2, dtype=torch.float64)
        for batch in _shown(batches, progress, "Scoring"):
            padded = pad([examples[row] for row in batch], streams)
            given = {name: tensor.to(model.device) for name, tensor in padded.items()}
            # Logits of all positions would take more memory than the rest of the model.
            losses = model(**given, logits_to_keep=1).losses
            real = given["labels"] != IGNORED
            found[torch.as_tensor(batch)] = torch.stack(
                [losses.double().masked_fill(~real, 0).sum(1), real.sum(1).double()], 1
            ).cpu()
            if after_batch is not None:
                after_batch()
        return found

    return computed_together(model, compute).numpy()


def _shown(batches: Sequence[Sequence[int]], progress: bool, what: str) -> Iterable[Sequence[int]]:
    """Return this process's batches, perhaps with a progress bar."""
    own = batches[processes.rank() :: processes.count()]
    shown: Iterator[Sequence[int]] = tqdm(own, desc=what, unit="batch", leave=None)
    return shown if progress else own


def pair_lengths(dataset: Dataset) -> np.ndarray:
    """Return the lengths of sources and targets, (n, 2)."""
    return np.stack([np.asarray(dataset[name][:]) for name in ("length", "target_length")], 1)
