"""Number to explain, that a model gives one example: `Question`."""

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from tqdm import tqdm
from transformers import PreTrainedModel

from longspan.mixers import Look
from longspan.models.replica import replica

#: Positions that are read at once where an example is read several times.
AT_ONCE = 1 << 18

#: The name of a layer, that of some of its weights, and these, (n, t), by head, slot or unit.
LayerWeights = tuple[str, str, Float[Tensor, "n t"]]


@dataclass(frozen=True)
class InputSequence:
    """One of the sequences that a model reads, by the names of arguments of its `forward`.

    Attributes:
        mask: The mask of its positions, (1, t), 1 where they are real.
        counts: How often each position counts in what others read, (1, t).
        call: Which call of the model's embeddings reads it, from 0.
    """

    mask: str = "attention_mask"
    counts: str = "counts"
    call: int = 0


@dataclass(frozen=True)
class Question:
    """A number that a model gives one example, as a function of the positions that it reads.

    Where it reads several sequences, such as two documents, the positions are those of the first, then of the second.

    Attributes:
        model: The model, in evaluation mode.
        batch: The tensors that its `forward` takes, a batch of one row.
        value: From the model's outputs (b, ...) to the numbers (b,) that are explained, such as log-odds.
        share: From these outputs to what removals change as people see it, (b,), such as a probability.
        reads: The sequences whose positions are explained.
        masked: Whether what is deleted is masked, so that n-grams of it are gone, too. If not, its positions count 0 in
            all that others read, which also works where the embeddings join positions, along edges, and for what is
            said about a position that is deleted itself.
        settings: Arguments of `forward` that are the same whatever is deleted, such as those that are no tensors.
        at: The position that the number is said of, where it is one; None for the whole example.
        exact: Whether positions are so few that each is removed in turn, where others have the first-order effect.
        rows: Number of rows of the batch that can be read at once with other positions deleted; None for any number.
        output: From what `forward` returns to the outputs.
    """

    model: PreTrainedModel
    batch: Mapping[str, Tensor]
    value: Callable[[Tensor], Tensor]
    share: Callable[[Tensor], Tensor]
    reads: Sequence[InputSequence] = (InputSequence(),)
    masked: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    at: int | None = None
    exact: bool = False
    rows: int | None = None
    output: Callable[[Any], Tensor] = lambda found: found.logits

    @property
    def lengths(self) -> list[int]:
        """Number of the model's positions of each sequence: fewer than are read where the embeddings join some."""
        return [real.shape[1] for real in self._each_real()]

    @property
    def real(self) -> Bool[Tensor, " t"]:
        """Mask of the real positions, on the CPU."""
        return torch.cat(self._each_real(), 1)[0].cpu()

    @functools.cached_property
    def replica(self) -> PreTrainedModel:
        """A `replica` of the model."""
        return replica(self.model)

    def logits(self, **more: Any) -> Tensor:
        """Return the model's outputs, with more arguments, as a function of these alone: no weight has a gradient."""
        return self.output(self.replica(**{**self.batch, **self.settings, **more}))

    def counted(self, counts: Float[Tensor, "1 t"]) -> Tensor:
        """Return the outputs where positions count that often in what others read."""
        parts = counts.split(self.lengths, 1)
        return self.logits(**{read.counts: part for read, part in zip(self.reads, parts, strict=True)})

    def scaled(self, scales: Float[Tensor, "1 t"]) -> Tensor:
        """Return the outputs where the embedding of each position is multiplied by its scale."""
        parts = dict(zip((read.call for read in self.reads), scales.split(self.lengths, 1), strict=True))
        calls = itertools.count()

        def times(module: Any, arguments: Any, embedded: Tensor) -> Tensor:
            own = parts.get(next(calls))
            return embedded if own is None else embedded * own.unsqueeze(-1).to(embedded.dtype)

        handle = self.replica.base_model.embeddings.register_forward_hook(times)
        try:
            return self.logits()
        finally:
            handle.remove()

    def weights(self) -> Iterator[LayerWeights]:
        """Yield the weights of all layers, on the CPU: see `Mixer.look`.

        They are those of the position `at`; without one, means over all that read, or those of the last position of
        causal mixers.

        Raises:
            UserError: A mixer shows none.
        """
        found = looks(self.model, {**self.batch, **self.settings}, self.at)
        layers = len(self.model.base_model.backbone.layers)
        for layer in range(layers):
            own = [found[read.call * layers + layer] for read in self.reads]
            for name in own[0].weights:
                weights = torch.cat([look.weights[name][0].float().cpu() for look in own], -1)
                yield f"layer {layer + 1}", name, weights / len(own)

    @torch.no_grad()
    def without(self, kept: Bool[Tensor, "n t"]) -> Iterator[Tensor]:
        """Yield the outputs for the example with the positions alone that each row keeps, some rows at a time."""
        rows = self.rows or max(1, AT_ONCE // kept.shape[1])
        for some in tqdm(kept.split(rows), "Reading without parts", leave=False, delay=2):
            batch = dict(self.batch)
            if len(some) > 1:
                batch = {name: given.expand(len(some), *given.shape[1:]) for name, given in batch.items()}
            for read, part in zip(self.reads, some.to(self.model.device).split(self.lengths, 1), strict=True):
                if self.masked:
                    batch[read.mask] = (part & self.batch[read.mask].bool()).long()
                else:
                    batch[read.counts] = part.float()
            yield self.output(self.model(**batch, **self.settings)).float().cpu()

    def values(self, kept: Bool[Tensor, "n t"]) -> Float[Tensor, " n"]:
        """Return the number that is explained for the example with the positions alone that each row keeps."""
        return torch.cat([self.value(logits) for logits in self.without(kept)])

    def _each_real(self) -> list[Tensor]:
        embeddings = self.model.base_model.embeddings
        return [embeddings.reduced(self.batch[read.mask].bool()) for read in self.reads]


@torch.no_grad()
def looks(model: PreTrainedModel, batch: Mapping[str, Tensor], at: int | None = None) -> list[Look]:
    """Return the look of each layer's mixer at what it reads (`Mixer.look`), from the first layer to the last.

    Cost: about 1.5 forward passes. Of whole rows, mixers that weigh pairs of positions take 4 (linear attention) to 15
    (softmax, local, delta), most of it for distances. Memory grows as that of a forward pass.

    Args:
        model: a model of longspan, in evaluation mode.
        batch: the arguments of its `forward`.
        at: the position that reads; None: whole rows, or the last real position of causal mixers.

    Raises:
        UserError: for a mixer that shows no looks, and a position that is not in the rows.
    """
    found, model = list[Look](), replica(model)

    def look(mixer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        # Of a graph, without which its mixers read a chain.
        along = {"structure": options["structure"]} if "structure" in options else {}
        found.append(mixer.look(*arguments[:2], at=at, **along))

    # Layers that share weights have the same mixer, which is called for each.
    for mixer in dict.fromkeys(block.mixer for block in model.base_model.backbone.layers):
        mixer.register_forward_pre_hook(look, with_kwargs=True)
    model(**batch)
    return found
