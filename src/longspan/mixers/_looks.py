"""What a mixer shows of how it reads a row: weights of positions, distances, time constants and gates.

    look(x, mask, at=at)                how a whole row is read, or what one position reads: a `Look`
    look(x, mask, at=at, state=state)   the same of a row that continues a stream
    reproduce(x, mask, look)            the output at that position, from the weights of the look

A mixer whose `capabilities` have `looks` implements

    look_at(x, mask, at)            the look at a position of each row, or at whole rows
    look_at(x, mask, at, state)     where it streams, that of rows that continue from a state
    pool_look(x, mask, look, at)    the outputs at these positions
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from longspan.errors import UserError
from longspan.mixers import _checks
from longspan.mixers._capabilities import Capabilities
from longspan.mixers._context_state import ContextState
from longspan.ops.execution import without_autocast
from longspan.ops.packing import zero_padding
from longspan.ops.pooling import PrefixMean, masked_logits
from longspan.ops.scan import FLOOR
from longspan.ops.scan.plain import exact_dtype, logcumsumexp

#: Weights that add up to one over the positions that are read.
SHARES = ("alpha", "beta", "send", "receive", "shares", "lookup", "attention")
#: The share of the weights that lies within `Look.reach`.
REACHED = 0.9


@dataclass(frozen=True, eq=False)
class Look:
    """How a mixer reads rows of t positions. All numbers are in at least float32.

    Attributes:
        at: the position of each row that reads, (b,); None: all of them, and weights are means over the real ones.
        weights: by name, (b, n, t), n being heads, slots or channels: none is negative, and padding weighs nothing.
            Those in `SHARES` add up to one over a row's real positions. "adds" and "subtracts" are the parts of weights
            that have signs, of whole rows those of the mean. "kept" is how much of each position is left.
        distances: (heads, buckets), the shares of the weights by distance, of all rows together. The buckets end at
            powers of two. Distances count real positions. Of whole rows, they are those of some queries, evenly spread.
        reach: (heads,), the distance within which 90 % of the weights lie.
        time_constants: (heads,) or (heads, channels), positions after which a weight has shrunk to 1/e, at the mean
            rate of the real positions.
        gates: by name, (b, heads, t), the mean of what scales each position's output.
        state: what the rows continue from; None where they begin. Weights in `SHARES` then add up to less than one: the
            rest is that of the positions before. Distances are those of the rows' own positions.
        carried: by name of weights, (b, n, e), what the state adds to the sums that these weights make.
        edges: (n, heads), the weight of each edge of a graph in what its target reads, in the order in which they were
            given; 0 for an edge that does not count.
    """

    at: Int[Tensor, " b"] | None
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    distances: Tensor | None = None
    reach: Tensor | None = None
    time_constants: Tensor | None = None
    gates: Mapping[str, Tensor] = field(default_factory=dict)
    state: Any = None
    carried: Mapping[str, Tensor] = field(default_factory=dict)
    edges: Tensor | None = None

    def strongest(self, name: str, most: int = 10) -> list[list[tuple[int, float]]]:
        """Return the positions with the largest weights of a name in each row, means over heads, largest first.

        Positions without weight are none of them: of a graph's node, only its neighbours are.
        """
        mean = self.weights[name].mean(1)
        best = mean.topk(min(most, mean.shape[1]), 1)
        rows = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [[(place, weight) for place, weight in zip(*row, strict=True) if weight > 0] for row in rows]


class Looks:
    """The part of a `Mixer` that shows how it reads rows."""

    if TYPE_CHECKING:
        capabilities: ClassVar[Capabilities]
        dim: int
        causal: bool
        max_length: int | None

        @property
        def _name(self) -> str: ...

    def look(
        self,
        x: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"] | None = None,
        *,
        at: int | None = None,
        state: Any = None,
    ) -> Look:
        """Return how rows are read: exactly, without a t x t matrix.

        Args:
            x: the rows, as `forward` takes them.
            mask: True at real positions.
            at: what the position of this number reads; rows where it is padding show zeros. None: how whole rows are
                read, as means over their real positions; of a causal mixer what the last real position reads.
            state: what the rows continue from, as those of `step` do. It is not changed.

        Raises:
            UserError: for a mixer that has nothing to show, a position outside the row, a state of a mixer that does
                not stream or one with a context, and what `forward` refuses.
        """
        return self._look(x, mask, at, state, self.look_at)

    def _look(self, x: Tensor, mask: Tensor | None, at: int | None, state: Any, look_at: Callable[..., Look]) -> Look:
        """Return what `look_at` shows, after all checks and without padding."""
        if not self.capabilities.looks:
            refuse_look(self._name, "which has none")
        _checks.check_rows(self._name, self.dim, x, mask)
        _checks.check_length(self._name, self.max_length, x, mask)
        if state is not None:
            self._check_continued(x, state)
        b, t, _ = x.shape
        if not (t if at is None else 0 <= at < t):
            raise UserError(f"{self._name} expected a position of a row of {t}, got {at}; choose one that is there.")
        x, places = zero_padding(x, mask), None
        if at is not None:
            places = torch.full((b,), at, device=x.device)
        elif self.causal:
            last = torch.arange(1, t + 1, device=x.device)
            places = (last.expand(b, t) if mask is None else last * mask).argmax(1)
        with without_autocast(x):
            look = look_at(x, mask, places, **({} if state is None else {"state": state}))
        look = replace(look, state=state)
        if mask is None or places is None:
            return look
        real = mask.gather(1, places.unsqueeze(1)).unsqueeze(2)
        weights, carried = ({name: found * real for name, found in own.items()} for own in (look.weights, look.carried))
        return replace(look, weights=weights, carried=carried)

    def _check_continued(self, x: Tensor, state: Any) -> None:
        """Raise UserError unless rows can continue from a state, and are all that is read."""
        _checks.check_streaming(self._name, self.capabilities.streaming, self.causal)
        _checks.check_state(self._name, x, state)
        if isinstance(state, ContextState):
            raise UserError(
                f"{self._name} expected a state without a context to look at what it reads of x, got one with a "
                "context; see context_weights."
            )

    def reproduce(
        self, x: Float[Tensor, "b t d"], mask: Bool[Tensor, "b t"] | None, look: Look
    ) -> Float[Tensor, "b d"]:
        """Return the outputs at `look.at`, pooled with the weights of a look at these rows: those of `forward`, or of
        `step` where they continue from a state.

        Raises UserError for a look at whole rows.
        """
        if look.at is None:
            raise UserError(f"{self._name} expected a look at a position, got one at whole rows; also pass at=...")
        with without_autocast(x):
            y = self.pool_look(zero_padding(x, mask), mask, look, look.at)
        return y if mask is None else y * mask.gather(1, look.at.unsqueeze(1)).to(y.dtype)

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None, state: Any = None) -> Look:
        """Return what `look` does, x being zero at padding; weights of rows where `at` (b,) is padding do not matter.

        `at` is None for whole rows of a mixer that is not causal. Only mixers that stream get a `state`.
        """
        raise NotImplementedError(f"{self._name} declares that it shows looks, and must implement look_at")

    def pool_look(self, x: Tensor, mask: Tensor | None, look: Look, at: Tensor) -> Tensor:
        """Return what `reproduce` does, x being zero at padding; rows where `at` (b,) is padding do not matter."""
        raise NotImplementedError(f"{self._name} declares that it shows looks, and must implement pool_look")


def refuse_look(name: str, why: str) -> None:
    """Raise UserError for a mixer that has nothing to show."""
    raise UserError(f"expected a mixer whose weights can be looked at, got {name}, {why}; choose another mixer.")


def there(x: Tensor, at: Int[Tensor, " b"]) -> Tensor:
    """Return what x (b, t, ...) holds at a position of each row, (b, ...)."""
    return x[torch.arange(x.shape[0], device=x.device), at]


def pooled(weights: Float[Tensor, "b h t"], values: Float[Tensor, "b t h e"]) -> Float[Tensor, "b h e"]:
    """Return the sums over positions of each head's values times its weights, in the type of the weights."""
    return torch.einsum("bht,bthe->bhe", weights, values.to(weights.dtype))


def gathered(look: Look, name: str, values: Float[Tensor, "b t h e"]) -> Float[Tensor, "b h e"]:
    """Return what the weights of that name pool, and what the state adds, if there is one."""
    found = pooled(look.weights[name], values)
    return found + look.carried[name] if name in look.carried else found


def weights_at(
    logits: Float[Tensor, "b t h"],
    mask: Bool[Tensor, "b t"] | None,
    at: Int[Tensor, " b"] | None,
    rates: Float[Tensor, "b t h"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "b h t"]:
    """Return the softmax over positions of logits that decay by `rates` between each position and `at`.

    Causal: over the positions up to `at`. Without `at`, the mean over the real positions of what each of them has.
    """
    logits = masked_logits(logits, mask)
    if at is None:
        return (logits.softmax(1) if rates is None else _mean_windows(logits, mask, rates)).mT * _real(mask)
    seen = torch.ones_like(logits[..., 0], dtype=torch.bool) if mask is None else mask
    if rates is not None:
        passed = _passed(rates)
        logits = logits - (passed - there(passed, at).unsqueeze(1)).abs().to(logits.dtype)
    if causal:
        seen = seen & (torch.arange(logits.shape[1], device=logits.device) <= at.unsqueeze(1))
    seen = seen.unsqueeze(2)
    return (logits.masked_fill(~seen, FLOOR).softmax(1) * seen).mT


def weights_after(
    before: PrefixMean,
    logits: Float[Tensor, "b t h"],
    mask: Bool[Tensor, "b t"] | None,
    at: Int[Tensor, " b"],
    rates: Float[Tensor, "b t h"] | None = None,
) -> tuple[Float[Tensor, "b h t"], Float[Tensor, "b h e"]]:
    """Return the causal `weights_at` after a state, and what the state adds to the sums that they make.

    A state weighs what one position before all others would, with its normaliser for a logit.
    """
    b, t, _ = logits.shape
    seen = torch.ones(b, t, dtype=torch.bool, device=logits.device) if mask is None else mask
    # That of a state that has seen nothing is no logit.
    seen = torch.cat(((before.normaliser > FLOOR / 2).any(1, keepdim=True), seen), 1)
    logits = torch.cat((before.normaliser.unsqueeze(1), masked_logits(logits, mask).to(before.normaliser.dtype)), 1)
    if rates is not None:
        rates = torch.cat((torch.zeros_like(rates[:, :1]), rates), 1)
    found = weights_at(logits, seen, at + 1, rates, causal=True)
    return found[..., 1:], found[..., :1] * before.mean


def kept(
    rates: Float[Tensor, "b h t"], mask: Bool[Tensor, "b t"] | None, at: Int[Tensor, " b"] | None
) -> Float[Tensor, "b h t"]:
    """Return how much of each position up to `at` is left there, where all before it shrinks by exp(-rate) at each.

    Without `at`, the mean over the real positions; those before a position have nothing of it.
    """
    passed = _passed(rates.mT)
    real = torch.ones_like(passed[..., 0], dtype=torch.bool) if mask is None else mask
    if at is None:
        # Σ_{i>=j} exp(-(F_i - F_j)) over the real i.
        later = logcumsumexp((-passed).masked_fill(~real.unsqueeze(2), FLOOR).flip(1)).flip(1)
        number = real.sum(1).clamp_min(1).view(-1, 1, 1)
        return (((later + passed).exp() / number).to(rates.dtype) * real.unsqueeze(2)).mT
    seen = real & (torch.arange(passed.shape[1], device=rates.device) <= at.unsqueeze(1))
    left = (passed - there(passed, at).unsqueeze(1)).masked_fill(~seen.unsqueeze(2), -math.inf)
    return left.to(rates.dtype).exp().mT


def distances_of(mass: Float[Tensor, "h t"]) -> tuple[Tensor, Tensor]:
    """Return `Look.distances` and `Look.reach` from the shares of the weights at distances from 0 to t - 1."""
    t = mass.shape[1]
    edges = 2 ** torch.arange((t - 1).bit_length(), device=mass.device)
    buckets = torch.bucketize(torch.arange(t, device=mass.device), edges, right=True)
    distances = mass.new_zeros(mass.shape[0], len(edges) + 1).index_add_(1, buckets, mass)
    return distances, (mass.cumsum(1) < REACHED).sum(1)


def time_constants(
    rates: Float[Tensor, "b t h"] | None, mask: Bool[Tensor, "b t"] | None
) -> Float[Tensor, " h"] | None:
    """Return 1 over the mean rate of all real positions, which is zero at padding; None without decay."""
    if rates is None:
        return None
    number = rates[..., 0].numel() if mask is None else mask.sum()
    return number / rates.sum((0, 1))


def _real(mask: Tensor | None) -> Tensor | int:
    return 1 if mask is None else mask.unsqueeze(1)


def _passed(rates: Tensor) -> Tensor:
    """Return the sums of rates (b, t, h) up to each position, whose differences keep their digits."""
    return rates.to(exact_dtype(rates.device)).cumsum(1)


def _mean_windows(logits: Tensor, mask: Tensor | None, rates: Tensor) -> Tensor:
    """Return the mean over the real positions i of softmax_j(z_j - |F_i - F_j|), (b, t, h), in two scans.

    With log Z_i = T(z)_i for T(u)_i = log Σ_j exp(u_j - |F_i - F_j|), it is exp(z_j + T(-log Z)_j) / n.
    """
    passed, wide = _passed(rates), logits.to(exact_dtype(logits.device))

    def spread(u: Tensor) -> Tensor:
        from_here = logcumsumexp((u - passed).flip(1)).flip(1)
        after = torch.cat((from_here, torch.full_like(u[:, :1], FLOOR)), 1)[:, 1:]
        return torch.logaddexp(logcumsumexp(u + passed) - passed, after + passed)

    normaliser = -spread(wide)
    if mask is not None:
        normaliser = normaliser.masked_fill(~mask.unsqueeze(2), FLOOR)
    number = logits.shape[1] if mask is None else mask.sum(1).clamp_min(1).view(-1, 1, 1)
    return ((wide + spread(normaliser)).exp() / number).to(logits.dtype)
