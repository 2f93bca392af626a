"""What is to be explained: a number that a model gives one example, `Question`."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.func import functional_call
from tqdm import tqdm
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
        masked: Whether what is deleted is masked, so that n-grams of it are gone, too. If not, its positions count 0 in
            all that others read, which also works where the embeddings join positions, or along edges.
    """

    model: PreTrainedModel
    batch: Mapping[str, Tensor]
    mask: str
    value: Callable[[Tensor], Tensor]
    share: Callable[[Tensor], Tensor]
    masked: bool = True

    @property
    def real(self) -> Bool[Tensor, " t"]:
        """Which of the model's positions are real, on the CPU: fewer than are read where the embeddings join some."""
        found: Tensor = self.model.base_model.embeddings.reduced(self.batch[self.mask].bool())
        return found[0].cpu()

    def logits(self, **more: Any) -> Tensor:
        """Return the model's outputs, with more arguments, as a function of these alone: no weight has a gradient."""
        weights = {name: weight.detach() for name, weight in self.model.named_parameters()}
        found: Tensor = functional_call(self.model, weights, (), {**self.batch, **more}).logits
        return found

    @torch.no_grad()
    def without(self, kept: Bool[Tensor, "n t"]) -> Iterator[Tensor]:
        """Yield the outputs for the example with the positions alone that each row keeps, some rows at a time."""
        device = self.model.device
        # Edges and sparse features belong to all rows of a batch together.
        rows = 1 if "edges" in self.batch else max(1, AT_ONCE // kept.shape[1])
        for some in tqdm(kept.split(rows), "Reading without parts", leave=False, delay=2):
            batch = dict(self.batch)
            if len(some) > 1:
                batch = {name: given.expand(len(some), *given.shape[1:]) for name, given in batch.items()}
            if self.masked:
                batch[self.mask] = (some.to(device) & self.batch[self.mask].bool()).long()
            else:
                batch["counts"] = some.to(device, torch.float32)
            yield self.model(**batch).logits.float().cpu()

    def values(self, kept: Bool[Tensor, "n t"]) -> Float[Tensor, " n"]:
        """Return the number that is explained for the example with the positions alone that each row keeps."""
        return torch.cat([self.value(logits) for logits in self.without(kept)])
