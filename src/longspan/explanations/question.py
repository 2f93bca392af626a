"""What is to be explained: a number that a model gives one example, `Question`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.func import functional_call
from transformers import PreTrainedModel

#: Positions that are read at once where an example is read several times.
AT_ONCE = 1 << 18


@dataclass(frozen=True)
class Question:
    """A number that a model gives one example, as a function of the positions that it reads.

    Attributes:
        model: The model, in evaluation mode.
        batch: The arguments of its `forward`, a batch of one row.
        mask: Which of these is the mask of its positions, (1, t), 1 where they are real.
        value: From the model's outputs `logits` (b, ...) to the numbers (b,) that are explained, such as log-odds.
        share: From these outputs to what removals change as people see it, (b,), such as a probability.
    """

    model: PreTrainedModel
    batch: Mapping[str, Tensor]
    mask: str
    value: Callable[[Tensor], Tensor]
    share: Callable[[Tensor], Tensor]

    @property
    def real(self) -> Bool[Tensor, " t"]:
        """Which positions are real, on the CPU."""
        return self.batch[self.mask][0].bool().cpu()

    def logits(self, **more: Any) -> Tensor:
        """Return the model's outputs, with more arguments, as a function of these alone: no weight has a gradient."""
        weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
        found: Tensor = functional_call(self.model, weights, (), {**self.batch, **more}).logits
        return found

    @torch.no_grad()
    def without(self, kept: Bool[Tensor, "n t"]) -> Iterator[Tensor]:
        """Yield the outputs for the example with the positions alone that each row keeps, some rows at a time."""
        rows = max(1, AT_ONCE // kept.shape[1])
        for some in kept.split(rows):
            batch = {name: given.expand(len(some), *given.shape[1:]) for name, given in self.batch.items()}
            batch[self.mask] = (some.to(self.batch[self.mask].device) & self.batch[self.mask].bool()).long()
            yield self.model(**batch).logits.float().cpu()

    def values(self, kept: Bool[Tensor, "n t"]) -> Float[Tensor, " n"]:
        """Return the number that is explained for the example with the positions alone that each row keeps."""
        return torch.cat([self.value(logits) for logits in self.without(kept)])
