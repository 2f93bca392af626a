"""What mixers show that weigh pairs of positions: what is attended to, and how far away it is."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.mixers._looks import Look, distances_of, pooled, there
from longspan.mixers.base import Mixer
from longspan.ops.alibi import key_numbers
from longspan.ops.heads import weighted
from longspan.ops.scan import accumulation_dtype

#: Queries of a row, evenly spread, of which distances are known where the row has more.
SAMPLED = 31


class Pairwise(Mixer):
    """A mixer whose outputs are `output` of each head's sums of `value`, with a weight for each pair of positions.

    The sums are linear in the values. So a query's weights are the gradient of what it gathers: they take the time and
    the memory of a forward and a backward pass, whatever the mixer does to avoid a matrix of all pairs.

    Attributes:
        signed: whether weights may be negative. They are then shown as two, "adds" and "subtracts".
    """

    signed = False

    value: nn.Linear
    output: nn.Module
    heads: int

    def gather_values(self, x: Tensor, mask: Tensor | None, values: Float[Tensor, "b h t e"]) -> Tensor:
        """Return the sums (b, h, t, e) of other values than those of x (b, t, dim), which is zero at padding."""
        raise NotImplementedError(f"{self._name} declares that it shows looks, and must implement gather_values")

    def gather_after(self, x: Tensor, mask: Tensor | None, values: Float[Tensor, "b h t e"], state: Any) -> Tensor:
        """Return the same sums of rows that continue from a state, of whose positions the values are its own."""
        raise NotImplementedError(
            f"{self._name} declares that it shows looks and streams, and must implement gather_after"
        )

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None, state: Any = None) -> Look:
        """ "attention": what `at` attends to. Of whole rows the mean over all queries; distances are those of some."""
        real = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask
        numbers = key_numbers(x.shape[1], mask, x.device).expand_as(real)
        if at is not None:
            places = at.unsqueeze(1)
            taken = self._taken(x, mask, _columns(places, x.shape[1]), state)
            distances = _distances(taken, numbers, places, real.gather(1, places))
            look = Look(at, self._shown(taken[..., 0]), *distances)
            if state is None:
                return look
            # What is gathered where all values of x are zero.
            nothing = x.new_zeros(x.shape[0], self.heads, x.shape[1], self.dim // self.heads)
            own = there(self.gather_after(x, mask, nothing, state).transpose(1, 2), at)
            return replace(look, carried={next(iter(look.weights)): own.to(taken.dtype)})
        places, chosen = _spread(real)
        taken = self._taken(x, mask, torch.cat((real.unsqueeze(2), _columns(places, x.shape[1])), 2))
        mean = taken[..., 0] / real.sum(1).clamp_min(1).view(-1, 1, 1)
        return Look(at, self._shown(mean), *_distances(taken[..., 1:], numbers, places, chosen))

    def pool_look(self, x: Tensor, mask: Tensor | None, look: Look, at: Tensor) -> Tensor:
        if look.carried:
            taken = taken_in(look)
            found = pooled(taken, self.value(x).unflatten(2, (self.heads, -1))) + sum(look.carried.values())
            y: Tensor = self.output(found.flatten(1).to(x.dtype))
            return y
        y = self.output(weighted(taken_in(look).unsqueeze(2), self.value(x)))
        return y.squeeze(1)

    def _shown(self, taken: Tensor) -> dict[str, Tensor]:
        return {"adds": taken.relu(), "subtracts": (-taken).relu()} if self.signed else {"attention": taken}

    def _taken(
        self, x: Tensor, mask: Tensor | None, asked: Float[Tensor, "b t n"], state: Any = None
    ) -> Float[Tensor, "b h t n"]:
        """Return the weights of all positions in n sums of the queries, times `asked`."""
        # Values of the usual width: fused kernels take no others. Each channel has the weights of another query.
        width = self.dim // self.heads
        found: list[Tensor] = []
        for part in asked.to(x.dtype).split(width, 2):
            part = nn.functional.pad(part, (0, width - part.shape[2]))
            with torch.enable_grad():
                values = x.new_zeros(x.shape[0], self.heads, x.shape[1], width, requires_grad=True)
                if state is None:
                    gathered = self.gather_values(x.detach(), mask, values)
                else:
                    gathered = self.gather_after(x.detach(), mask, values, state)
                found += torch.autograd.grad(gathered, values, part.unsqueeze(1).expand_as(gathered).to(gathered.dtype))
        taken = torch.cat(found, 3)[..., : asked.shape[2]].to(accumulation_dtype(x.dtype))
        return taken if mask is None else taken * mask[:, None, :, None]


def taken_in(look: Look) -> Float[Tensor, "b h t"]:
    """Return the weights of a look at a `Pairwise` mixer, with their signs."""
    if "attention" in look.weights:
        return look.weights["attention"]
    return look.weights["adds"] - look.weights["subtracts"]


def left_aligned_values(
    gather: Callable[[Tensor, Tensor | None, Tensor], Tensor], x: Tensor, mask: Tensor | None, values: Tensor
) -> Tensor:
    """Return `gather(x, mask, values)` with the real positions of each row moved to its start, and back."""
    if mask is None:
        return gather(x, None, values)
    order = torch.argsort((~mask).to(torch.uint8), dim=1, stable=True)
    index = order[:, None, :, None].expand_as(values)
    found = gather(x.gather(1, order.unsqueeze(2).expand_as(x)), mask.gather(1, order), values.gather(2, index))
    return torch.zeros_like(found).scatter(2, index, found)


def _columns(places: Int[Tensor, "b n"], t: int) -> Float[Tensor, "b t n"]:
    return nn.functional.one_hot(places, t).mT.float()


def _spread(real: Bool[Tensor, "b t"]) -> tuple[Int[Tensor, "b n"], Bool[Tensor, "b n"]]:
    """Return the places of real positions that are spread evenly over each row, and which of them exist."""
    count, number = real.sum(1, keepdim=True), min(SAMPLED, real.shape[1])
    ranks = torch.arange(number, device=real.device)
    order = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)
    return order.gather(1, torch.where(count > number, ranks * count // number, ranks)), ranks < count


def _distances(
    taken: Float[Tensor, "b h t n"],
    numbers: Int[Tensor, "b t"],
    places: Int[Tensor, "b n"],
    chosen: Bool[Tensor, "b n"],
) -> tuple[Tensor, Tensor]:
    """Return `Look.distances` and `Look.reach` of n queries at `places`, of those that are chosen."""
    _, h, t, _ = taken.shape
    steps = (numbers.unsqueeze(2) - numbers.gather(1, places).unsqueeze(1)).abs().clamp_max(t - 1)
    # Each query counts the same.
    shares = taken.abs() / taken.abs().sum(2, keepdim=True).clamp_min(torch.finfo(taken.dtype).tiny)
    shares = (shares * chosen[:, None, None]).transpose(0, 1).flatten(1)
    mass = taken.new_zeros(h, t).index_add_(1, steps.flatten(), shares) / chosen.sum().clamp_min(1)
    return distances_of(mass)
