"""From sources to targets in batches of similar length: greedy and beam search, drawn candidates, losses of targets."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutput, ModelOutput

from longspan.data.batches.streams import Stream, pad
from longspan.models.alignment import aligned_layers, context_weights
from longspan.models.limits import limits
from longspan.models.parts.losses import IGNORED
from longspan.models.replica import replica
from longspan.training.lengths import in_batches, scoring_batches

#: A target has at most `RATIO` times the tokens of its source and `MORE`, unless it is said how many.
RATIO, MORE = 2, 20
#: Times the positions that the encoder reads at once are decoded at once.
_TOGETHER = 16


@dataclass(frozen=True)
class Search:
    """Options of the search for targets.

    Attributes:
        beams: Number of beams; 1 is greedy search.
        candidates: Number of targets that are drawn at random instead, of which those that agree best with all of them
            are taken; 0 for none.
        best: Number of targets of each source, at most as many as `beams` or `candidates`.
        length_penalty: Exponent of the length by which the log probability of a beam is divided.
        least: Minimum number of tokens, where a target may have as many.
        most: Maximum number of tokens; None for one that depends on the source. At least `least`.
        once: Number of tokens in a row that occur only once in a target; 0 for no such limit.
        batch_size: Maximum number of beams, or of candidates, in a batch.
        batch_tokens: Maximum number of positions of sources that the encoder reads at once; 0 for no limit.
    """

    beams: int
    candidates: int = 0
    best: int = 1
    length_penalty: float = 1.0
    least: int = 0
    most: int | None = None
    once: int = 0
    batch_size: int = 64
    batch_tokens: int = 0

    @property
    def rows(self) -> int:
        """Rows of a batch for each source."""
        return self.candidates or self.beams

    def __str__(self) -> str:
        if self.candidates:
            return f"the best of {self.candidates} candidates"
        least = f" and at least {self.least} tokens" if self.least else ""
        return ("greedy search" if self.beams == 1 else f"{self.beams} beams") + least

    def longest(self, sources: Sequence[int], model: PreTrainedModel) -> np.ndarray:
        """Return the maximum number of tokens of each target, end token not included, from those of sources."""
        lengths = np.asarray(sources, dtype=np.int64)
        found = RATIO * lengths + MORE if self.most is None else np.full(len(lengths), self.most)
        found = np.maximum(found, self.least)
        fits = most_targets(model)
        # The start token takes a position, the end token none.
        return found if fits is None else np.minimum(found, fits - 1)


def most_targets(model: PreTrainedModel) -> int | None:
    """Maximum number of tokens of a target, end token included; None for any number."""
    return min((limit.tokens for limit in limits(model.get_decoder())), default=None)


class SearchResult(NamedTuple):
    """Targets that were found.

    Attributes:
        targets: (n, `how.best`) lists of token ids, without start and end, best first.
        losses: (n, `how.best`, 2) float64, the nats of each, summed over its tokens, and their number, end included;
            (n, 0) unless they are scored.
        links: For each target the numbers that `link` returned; empty without one.
        references: (n, 2) float64, the nats of the references, and their number of tokens; (n, 0) without references.
    """

    targets: list[list[list[int]]]
    losses: np.ndarray
    links: list[list[Sequence[int]]]
    references: np.ndarray


Link = Callable[[int, Sequence[int], Tensor], Sequence[int]]
"""Returns a number of at least -1 for each token of a target, from the number of its source, the target's t tokens, and
(t, m) how much each of them reads of each source token."""


class _Ends(LogitsProcessor):
    """Ends each target at its own maximum, whatever the others in the batch do, and not before a minimum.

    Args:
        longest: (b,) maximum number of tokens.
        least: Minimum number of tokens, where the maximum allows as many.
        end: The end token.
    """

    def __init__(self, longest: np.ndarray, least: int, end: int) -> None:
        self.longest, self.least, self.end = torch.from_numpy(longest), least, end

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows, made = len(scores) // len(self.longest), input_ids.shape[1] - 1
        if made < self.least:
            scores = scores.clone()
            scores[:, self.end] = -torch.inf
        full = (self.longest <= made).to(scores.device).repeat_interleave(rows)
        only = torch.full_like(scores, -torch.inf)
        only[:, self.end] = 0
        return torch.where(full[:, None], only, scores)


@torch.no_grad()
def search(
    model: PreTrainedModel,
    sources: Sequence[Sequence[int]],
    how: Search,
    streams: Mapping[str, Stream],
    *,
    scored: bool = False,
    link: Link | None = None,
    references: Sequence[Sequence[int]] | None = None,
    **shown: Any,
) -> SearchResult:
    """Return the `how.best` targets of each source, which is read once.

    Several processes share the batches, and all get all of them.

    Args:
        model: An encoder-decoder model.
        sources: (n, ...) token ids.
        how: How to search.
        streams: `input_ids` and `labels`.
        scored: Whether to compute the loss of each target.
        link: Links of target tokens to the source, with `scored`; None for none.
        references: (n, ...) labels whose losses are computed; None for none.
        shown: `progress` and `after_batch` of `longspan.training.lengths.in_batches`.

    Raises:
        UserError: The decoder has no weights to link by, see `longspan.models.alignment.aligned_layers`.
    """
    if not len(sources):
        return SearchResult([], np.zeros((0, how.best, 2)), [], np.zeros((0, 2)))
    # Weights are read by hooks, which other threads must not run into.
    scorer, layers = (model, []) if link is None else (replica(model), aligned_layers(model))
    lengths = [len(source) for source in sources]
    longest = how.longest(lengths, model)
    # A source is read once, whatever its number of beams, and a step of the decoder takes one position of each.
    batches = scoring_batches(lengths, max(1, how.batch_size // how.rows), _TOGETHER * how.batch_tokens)

    def losses_of(reader: PreTrainedModel, given: Any, encoded: Any, targets: Sequence[Sequence[int]]) -> Tensor:
        labels = pad([{"labels": ids} for ids in targets], {"labels": streams["labels"]})["labels"].to(model.device)
        return _summed(reader(**given, encoder_outputs=encoded, labels=labels, logits_to_keep=1), labels)

    def compute(batch: Sequence[int]) -> list[Any]:
        padded = pad([{"input_ids": sources[row]} for row in batch], {"input_ids": streams["input_ids"]})
        given = {name: tensor.to(model.device) for name, tensor in padded.items()}
        encoded = _read(model, given, [lengths[row] for row in batch], how.batch_tokens)
        right = losses = np.zeros((len(batch), 0))
        if references is not None:
            right = losses_of(model, given, encoded, [references[row] for row in batch]).numpy()
        targets = _targets(model, [sources[row] for row in batch], given, encoded, longest[batch], how)
        links: list[Sequence[int]] = [()] * len(targets)
        if scored:
            ended = [[*ids, model.generation_config.eos_token_id] for ids in targets]
            with context_weights(scorer, layers) as weights:
                nats = losses_of(scorer, *_repeated(given, encoded, how.best), ended)
            losses = nats.view(len(batch), -1, 2).numpy()
            if link is not None:
                read = zip(
                    np.repeat(batch, how.best).tolist(), targets, torch.stack(weights).mean(0).cpu(), strict=True
                )
                links = [link(row, ids, parts[: len(ids)]) for row, ids, parts in read]
        of_each = [slice(start, start + how.best) for start in range(0, len(targets), how.best)]
        return [*zip((targets[own] for own in of_each), losses, (links[own] for own in of_each), right, strict=True)]

    found = in_batches(model, batches, compute, what="Generating", **shown)
    by_row = {row: one for batch, rows in found for row, one in zip(batch, rows, strict=True)}
    targets, losses, links, right = ([by_row[row][part] for row in range(len(sources))] for part in range(4))
    return SearchResult(targets, np.array(losses), links, np.array(right))


def _read(model: PreTrainedModel, given: Mapping[str, Tensor], lengths: Sequence[int], tokens: int) -> BaseModelOutput:
    """Outputs of the encoder for sources of these lengths, as many at once as have `tokens` positions."""
    parts = scoring_batches(lengths, len(lengths), tokens)
    if len(parts) == 1:
        return BaseModelOutput(last_hidden_state=model.get_encoder()(**given)[0])
    found: Tensor | None = None
    for part in parts:
        longest = max(lengths[row] for row in part)
        read = model.get_encoder()(**{name: tensor[part, :longest] for name, tensor in given.items()})[0]
        found = read.new_zeros(*given["input_ids"].shape, read.shape[2]) if found is None else found
        found[part, :longest] = read
    return BaseModelOutput(last_hidden_state=found)


def _targets(
    model: PreTrainedModel,
    sources: Sequence[Sequence[int]],
    given: Mapping[str, Tensor],
    encoded: ModelOutput,
    longest: np.ndarray,
    how: Search,
) -> list[list[int]]:
    """Return b·best targets of b sources that were read, those of the first source first."""
    end = model.generation_config.eos_token_id
    limit = _Ends(longest, how.least, end)
    options: dict[str, Any] = {
        "do_sample": False,
        "no_repeat_ngram_size": how.once,
        # Not the model's own, where another one is given.
        "min_new_tokens": 0,
        "max_new_tokens": int(longest.max()) + 1,
    }
    if how.candidates:
        given, encoded = _repeated(given, encoded, how.candidates)
        options |= {"num_beams": 1, "logits_processor": LogitsProcessorList([limit, Drawn(sources, how.candidates)])}
    else:
        options |= {"num_beams": how.beams, "num_return_sequences": how.best, "length_penalty": how.length_penalty}
        options["logits_processor"] = LogitsProcessorList([limit])
    made = model.generate(**given, encoder_outputs=encoded, **options)
    # The first one is the start.
    targets = [_before(ids, end) for ids in made[:, 1:].tolist()]
    if not how.candidates:
        return targets
    of_each = [targets[start : start + how.candidates] for start in range(0, len(targets), how.candidates)]
    return [some[place] for some in of_each for place in by_agreement(some)[: how.best]]


def _repeated(given: Mapping[str, Tensor], encoded: ModelOutput, times: int) -> tuple[dict[str, Tensor], ModelOutput]:
    """Return sources that were read, each that many times."""
    repeated = {name: tensor.repeat_interleave(times, 0) for name, tensor in given.items()}
    return repeated, BaseModelOutput(last_hidden_state=encoded[0].repeat_interleave(times, 0))


def _before(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end)] if end in ids else ids


@torch.no_grad()
def target_losses(
    model: PreTrainedModel,
    examples: Any,
    batches: Sequence[Sequence[int]],
    streams: Mapping[str, Stream],
    **shown: Any,
) -> np.ndarray:
    """Return the nats of each target, summed over its tokens, and their number, (n, 2) float64.

    Several processes share the batches, and all get all of them.

    Args:
        model: An encoder-decoder model.
        examples: n rows with the streams.
        batches: Row numbers, each exactly once.
        streams: `input_ids` and `labels`.
        shown: `progress` and `after_batch` of `longspan.training.lengths.in_batches`.
    """

    def compute(batch: Sequence[int]) -> Tensor:
        padded = pad([examples[row] for row in batch], streams)
        given = {name: tensor.to(model.device) for name, tensor in padded.items()}
        # Logits of all positions would take more memory than the rest of the model.
        return _summed(model(**given, logits_to_keep=1), given["labels"])

    found = np.zeros((len(examples), 2))
    for batch, losses in in_batches(model, batches, compute, **shown):
        found[batch] = losses
    return found


def _summed(outputs: Any, labels: Tensor) -> Tensor:
    """Return the nats of each target, and its number of tokens, (b, 2) float64 on the CPU."""
    real = labels != IGNORED
    nats = outputs.losses.double().masked_fill(~real, 0).sum(1)
    return torch.stack([nats, real.sum(1).double()], 1).cpu()


def pair_lengths(dataset: Dataset) -> np.ndarray:
    """Return the lengths of sources and targets, (n, 2)."""
    return np.stack([np.asarray(dataset[name][:]) for name in ("length", "target_length")], 1)


#: A token with a lower probability than this is never drawn, unless it is the likeliest: epsilon sampling, Hewitt
#: et al. 2022 (https://arxiv.org/abs/2210.15191). Label smoothing spreads a tenth of the probability over all tokens.
EPSILON = 0.02
_DRAWABLE = math.floor(1 / EPSILON)


class Drawn(LogitsProcessor):
    """Leaves one token of each row, drawn by its probability, so that greedy search samples.

    What is drawn depends on the source and the number of its candidate only, not on what else is in the batch, and no
    global random state is read.

    Args:
        sources: b lists of token ids.
        candidates: Number of candidates of each; the rows of logits are b·candidates, those of the first source first.
    """

    def __init__(self, sources: Sequence[Sequence[int]], candidates: int) -> None:
        self.generators = [
            torch.Generator().manual_seed(zlib.crc32(np.asarray(ids, dtype=np.int64).tobytes()) * candidates + number)
            for ids in sources
            for number in range(candidates)
        ]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        likely, tokens = scores.float().log_softmax(-1).topk(min(_DRAWABLE, scores.shape[-1]))
        likely[:, 1:] = likely[:, 1:].masked_fill(likely[:, 1:] < math.log(EPSILON), -torch.inf)
        # The first of waiting times with these rates.
        waiting = torch.stack([torch.empty(likely.shape[1]).exponential_(generator=own) for own in self.generators])
        taken = tokens.gather(1, (likely - waiting.to(likely.device).log()).argmax(-1, keepdim=True))
        return torch.full_like(scores, -torch.inf).scatter_(1, taken, 0)


def by_agreement(candidates: Sequence[Sequence[int]]) -> list[int]:
    """Return the places of candidates in the order of their mean agreement with all, the best first.

    Agreement is the mean of two F1: that of tokens and that of pairs of neighbouring tokens, which may be repeated. Two
    candidates without any agree in full. Of candidates that are the same, all but the first come last.

    Args:
        candidates: n lists of token ids.
    """
    agreed = np.zeros(len(candidates))
    for grams in (candidates, [[*pairwise(ids)] for ids in candidates]):
        known: dict[object, int] = {}
        rows = [[known.setdefault(gram, len(known)) for gram in of_one] for of_one in grams]
        counts = np.zeros((len(rows), len(known) + 1), dtype=np.int32)
        for count, row in zip(counts, rows, strict=True):
            np.add.at(count, row, 1)
        # One more gram, which all have: so that F1 is defined without any.
        counts[:, -1] = 1
        totals = counts.sum(1)
        for place, count in enumerate(counts):
            agreed[place] += (2 * np.minimum(counts, count).sum(1) / (totals + totals[place])).mean()
    first = {tuple(ids): place for place, ids in reversed([*enumerate(candidates)])}
    repeated = sorted({*range(len(candidates))} - {*first.values()})
    return [*sorted(first.values(), key=lambda place: (-agreed[place], place)), *repeated]
