"""Shared part of mixers that write keys and values into a matrix per head, and read it with queries."""

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import silu

from longspan.errors import UserError
from longspan.mixers._forgetting import Forgetting
from longspan.mixers._naive import rate_at
from longspan.mixers.base import Capabilities, Look
from longspan.mixers.looks import Pairwise, time_constants
from longspan.ops.heads import head_width, split_heads
from longspan.ops.normalised import normalised
from longspan.ops.scan import accumulation_dtype

# In the norm of what is read.
EPSILON = 1e-5


class FastWeightsState(NamedTuple):
    """The matrix of each head, (b, h, e, e): rows are channels of keys, columns of values."""

    matrix: Tensor


class FastWeights(Pairwise):
    """Keys, values and queries around a matrix per head, which `retrieve` defines; one direction if causal, else two.

    What is read is normalised per head and gated: y_t = W_o concat_h(norm(o_t) ⊙ silu(W_g x_t)).
    """

    capabilities = Capabilities(causal=True, streaming=True, looks=True, slices=True)
    NAME: ClassVar[str]
    signed = True

    def __init__(
        self, dim: int, *, heads: int, causal: bool, decay: str, channels: bool = False, rank: int | None = None
    ) -> None:
        super().__init__(dim, causal=causal)
        self.width = head_width(self.NAME, dim, heads)
        if not causal and heads % 2:
            raise UserError(
                f"{self.NAME} expected an even number of heads, half for each direction, got heads={heads}; change it "
                "or use causal=True."
            )
        self.heads = heads
        self.query = nn.Linear(dim, dim, bias=False)
        self.key = nn.Linear(dim, dim, bias=False)
        self.value = nn.Linear(dim, dim, bias=False)
        self.gate = nn.Linear(dim, dim, bias=False)
        self.output = nn.Linear(dim, dim, bias=False)
        self.scale = nn.Parameter(torch.ones(self.width))
        # Either direction forgets what it has read.
        self.forgetting = Forgetting(
            self.NAME,
            dim,
            heads,
            decay,
            causal=True,
            channels=self.width if channels else 1,
            rank=rank,
            directions=1 if causal else 2,
        )

    @abstractmethod
    def values(self, x: Tensor) -> Tensor:
        """Values that each position writes, (b, h, t, e)."""

    @abstractmethod
    def retrieve(
        self, x: Tensor, values: Tensor, rates: Tensor, state: Tensor, backwards: int
    ) -> tuple[Tensor, Tensor]:
        """Outputs read from values at each position, (b, h, t, e), and the matrices after the last.

        The last `backwards` heads read from the end; `rates` are (b, h, t) or (b, h, t, e). Where x is zero, as at
        padding, keys must be, so that nothing is written.
        """

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self.advance(x, mask, self.empty_state(x.shape[0], x.dtype, x.device))[0]

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> FastWeightsState:
        shape = (batch_size, self.heads, self.width, self.width)
        return FastWeightsState(torch.zeros(shape, dtype=accumulation_dtype(dtype), device=device))

    def advance(self, x: Tensor, mask: Tensor | None, state: FastWeightsState) -> tuple[Tensor, FastWeightsState]:
        found, matrix = self._retrieved(x, mask, self.values(x), state.matrix)
        return self._gated(x, found), FastWeightsState(matrix)

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        """ "adds" and "subtracts": the products of `at`'s query with keys, as far as they are kept; the mean "gate"."""
        times = time_constants(self.forgetting(x, mask), mask)
        if times is not None and self.forgetting.channels > 1:
            times = times.unflatten(0, (self.heads, -1))
        gate = silu(self.split(self.gate, x).to(accumulation_dtype(x.dtype))).mean(3)
        return replace(super().look_at(x, mask, at), time_constants=times, gates={"gate": gate})

    def gather_values(self, x: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
        return self._retrieved(x, mask, values, self.empty_state(x.shape[0], x.dtype, x.device).matrix)[0]

    def rates(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """Return the rates of each head, (b, h, t), or of its channels, (b, h, t, e)."""
        rates = self.forgetting(x, mask)
        if rates is None:
            numbers = self.heads * self.forgetting.channels
            rates = x.new_zeros(*x.shape[:2], numbers, dtype=accumulation_dtype(x.dtype))
        return rates.transpose(1, 2) if self.forgetting.channels == 1 else split_heads(rates, self.heads)

    def _retrieved(self, x: Tensor, mask: Tensor | None, values: Tensor, matrix: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs that each position reads of values, (b, h, t, e), and the matrices after the last."""
        return self.retrieve(x, values, self.rates(x, mask), matrix, 0 if self.causal else self.heads // 2)

    def _gated(self, x: Tensor, found: Tensor) -> Tensor:
        found = normalised(found.transpose(1, 2), self.width**0.5, self.width * EPSILON)
        y: Tensor = self.output((found * self.scale.to(found.dtype)).flatten(2).to(x.dtype) * silu(self.gate(x)))
        return y

    def split(self, projection: nn.Module, x: Tensor) -> Tensor:
        """Return a projection of each position as (b, h, t, e)."""
        return split_heads(projection(x), self.heads)


def naive_rows(
    mixer: FastWeights, x: Tensor, mask: Tensor | None, write: Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
) -> Tensor:
    """Compute `mixer(x, mask)` row by row, one position after the other.

    `write(S, x_t, f)` returns the matrices S (heads, e, e) after x_t (d,) and what is read from them, (heads, e).
    Before x_t, S decays by exp(-f), f being (heads, 1) or (heads, e).
    """
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = list(range(x.shape[1])) if mask is None else mask[row].nonzero().flatten().tolist()
        found: dict[int, Tensor] = {}
        for order in (real,) if mixer.causal else (real, real[::-1]):
            matrix = x.new_zeros(mixer.heads, mixer.width, mixer.width)
            for i in order:
                rate = rate_at(mixer.forgetting, x[row, i]).unflatten(0, (mixer.heads, -1))
                matrix, read = write(matrix, x[row, i], rate)
                # The second half of the heads is that of the second order.
                found[i] = torch.cat((found[i][: mixer.heads // 2], read[mixer.heads // 2 :])) if i in found else read
        for i in real:
            size = (found[i].square().mean(1, keepdim=True) + EPSILON).sqrt()
            gate = mixer.gate(x[row, i])
            y[row, i] = mixer.output((found[i] / size * mixer.scale).flatten() * gate * gate.sigmoid())
    return y
