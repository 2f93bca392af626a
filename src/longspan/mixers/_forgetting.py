"""Forgetting: how fast each head of a causal mixer loses what it has seen."""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import softplus

from longspan.errors import UserError, check_choice
from longspan.ops.scan import accumulation_dtype

KINDS = ("none", "fixed", "learned", "input")
# In positions, of the fastest and of the slowest head: how long until a weight has shrunk to 1/e.
SHORTEST, LONGEST = 2.0, 4096.0


class Forgetting(nn.Module):
    """Rates f_t >= 0 per head: at position t, the weights of all positions before it shrink by exp(-f_t).

    Equations:
        none: f_t = 0;  fixed: f_t = 1/τ_h, the time constants τ of the heads geometric from 2 to 4,096 positions
        learned: f_t = softplus(s_h);  input: f_t = softplus(s_h + w_h·x_t);  s_h starts where f_t = 1/τ_h

    Source: slopes over the heads: Press et al. 2022 (ALiBi), https://arxiv.org/abs/2108.12409. Rates that depend on the
        input: Gu and Dao 2023 (Mamba), https://arxiv.org/abs/2312.00752

    Args:
        mixer: the name of the mixer, for errors.
        dim: width of x.
        heads: number of heads, or of whatever forgets by itself.
        kind: "none", "fixed", "learned" or "input".
        causal: whether the mixer is causal.
        channels: number of channels of each head that forget by themselves; else time constants are those of all heads.
        rank: rank of w, where that is less than full.
        directions: number of equal groups of heads, each with time constants over the whole range.

    Raises:
        UserError: for an unknown kind, or one other than "none" without causal=True.
    """

    def __init__(
        self,
        mixer: str,
        dim: int,
        heads: int,
        kind: str,
        *,
        causal: bool,
        channels: int = 1,
        rank: int | None = None,
        directions: int = 1,
    ) -> None:
        super().__init__()
        check_choice(f"{mixer} forget", kind, KINDS)
        if kind != "none" and not causal:
            raise UserError(
                f"{mixer} expected causal=True to forget, got forget={kind!r} with causal=False; set one or the other."
            )
        self.heads, self.channels, self.directions = heads, channels, directions
        self.kind = kind
        if kind in ("learned", "input"):
            # The inverse of softplus.
            self.slope = nn.Parameter(self._first().expm1().log().to(torch.get_default_dtype()))
        if kind == "input":
            wide = nn.Linear(rank or dim, heads * channels, bias=False)
            self.input: nn.Module = nn.Sequential(nn.Linear(dim, rank, bias=False), wide) if rank else wide
            nn.init.normal_(wide.weight, std=0.02)

    def forward(self, x: Tensor, mask: Tensor | None) -> Tensor | None:
        """Return the rates (b, t, heads) of x (b, t, dim), in at least float32 and zero where `mask` is False. With
        decay rates per channel, (b, t, heads * channels).

        None means zeros everywhere.
        """
        if self.kind == "none":
            return None
        dtype = accumulation_dtype(x.dtype)
        if self.kind == "fixed":
            rates = self._first(x.device).to(dtype)
        elif self.kind == "learned":
            rates = softplus(self.slope.to(dtype))
        else:
            rates = softplus(self.input(x).to(dtype) + self.slope.to(dtype))
        rates = rates.expand(*x.shape[:2], -1)
        return rates if mask is None else rates * mask.unsqueeze(-1).to(dtype)

    def operations(self, length: int) -> int:
        """Number of operations of the products for one row of `length` positions."""
        return sum(2 * length * p.numel() for p in self.input.parameters()) if self.kind == "input" else 0

    def _first(self, device: torch.device | None = None) -> Tensor:
        if self.channels == 1:
            return first_rates(self.heads // self.directions, device).repeat(self.directions)
        return first_rates(self.channels, device).repeat(self.heads)


def refuse_context(mixer: str, forgetting: Forgetting) -> None:
    """Raise UserError for a context if the mixer forgets."""
    if forgetting.kind != "none":
        raise UserError(
            f"{mixer} expected no context with forget={forgetting.kind!r}, as positions of a context have no distance, "
            "got one; leave either out."
        )


def first_rates(heads: int, device: torch.device | None = None) -> Tensor:
    """Return 1/τ of each head, in float64; a single head has the mean of the logarithms."""
    ends = (0.0, 1.0) if heads > 1 else (0.5, 0.5)
    spread = torch.linspace(*ends, heads, dtype=torch.float64, device=device)
    return torch.exp(-math.log(SHORTEST) - spread * math.log(LONGEST / SHORTEST))
