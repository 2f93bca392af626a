"""Position encodings by name: sinusoidal, learned, fourier, none.

The module maps embeddings (b, t, w) and position numbers (b, t) to (b, t, w) if added and (b, t, 2w) if concatenated.
Numbers count from 0 at a document's first token. The sinusoid is multiplied by a learned scalar, which starts at 1/√w.
Position numbers stay integers and angles float32 until the end: bfloat16 cannot distinguish neighbouring positions
after 256.
"""

import math

import torch
from jaxtyping import Float, Int, Real
from torch import Tensor, nn

from longspan.errors import UserError, check_choice

NAMES = ("sinusoidal", "learned", "fourier", "none")
COMBINATIONS = ("add", "concat")


def sinusoid(positions: Real[Tensor, "*n"], width: int) -> Float[Tensor, "*n {width}"]:
    """Return sin and cos of `positions`, interleaved (Vaswani et al. 2017). Wavelengths are from 2π to 10,000·2π."""
    pairs = torch.arange(0, width, 2, dtype=torch.float32, device=positions.device)
    angles = positions.float().unsqueeze(-1) * torch.exp(pairs * (-math.log(10000.0) / width))
    return torch.stack((angles.sin(), angles.cos()), -1).flatten(-2)[..., :width]


def fourier_features(coordinates: Float[Tensor, "*n c"], levels: int) -> Float[Tensor, "*n f"]:
    """Return `x, sin 2^l x, cos 2^l x` for l < levels, for coordinates of any dimension (Mildenhall et al. 2020)."""
    frequencies = 2.0 ** torch.arange(levels, dtype=torch.float32, device=coordinates.device)
    angles = (coordinates.float().unsqueeze(-1) * frequencies).flatten(-2)
    return torch.cat((coordinates.float(), angles.sin(), angles.cos()), -1)


class Positions(nn.Module):
    """Position encoding by name.

    Args:
        name: "sinusoidal", "learned", "fourier" or "none".
        dim: width w of the embeddings.
        combine: "add", or "concat" (which doubles the width).
        max_positions: maximum number of tokens in a document with "learned"; the length at which the lowest "fourier"
            frequency completes half a turn (longer documents work, but less distinctly). The others ignore it.
        period: number of positions after which numbering restarts at 0, for endless streams; None never restarts.

    Raises:
        UserError: for an unknown name or combination; in calls, for a document longer than learned positions allow.
    """

    def __init__(
        self, name: str, dim: int, *, combine: str = "add", max_positions: int = 4096, period: int | None = None
    ) -> None:
        super().__init__()
        check_choice("position encoding", name, NAMES)
        check_choice("way to combine positions", combine, COMBINATIONS)
        self.name = name
        self.combine = combine
        self.max_positions = max_positions
        self.period = period
        self.output_dim = 2 * dim if combine == "concat" and name != "none" else dim
        if name == "sinusoidal":
            # A learned scale that starts small: at full size the sinusoid would drown new embeddings.
            self.log_scale = nn.Parameter(torch.zeros(()))
        elif name == "learned":
            self.table = nn.Embedding(max_positions, dim)
        elif name == "fourier":
            # Enough levels for the highest frequency to distinguish neighbours.
            self.levels = max(1, math.ceil(math.log2(max_positions)) + 1)
            self.project = nn.Linear(1 + 2 * self.levels, dim)

    def forward(
        self, embedded: Float[Tensor, "b t w"], positions: Int[Tensor, "#b #t"], *, each: bool = False
    ) -> Float[Tensor, "b t w2"]:
        """Encode documents from their beginning, or with `each` any position numbers, as `at` does."""
        if self.name == "none":
            return embedded
        if each:
            return self._at(embedded, positions)
        positions = self._wrapped(positions)
        length = embedded.shape[1]
        # A batch may be padded beyond what its documents need, so the position numbers decide, not the batch's length.
        endless = self.period is not None and self.period <= self.max_positions
        if (
            self.name == "learned"
            and not endless
            and length > self.max_positions
            and int(positions.max()) >= self.max_positions
        ):
            raise UserError(
                f"expected at most {self.max_positions} tokens for learned positions, got a document of "
                f"{int(positions.max()) + 1}; set "
                f"data.max_length={self.max_positions}, or train with a larger model.max_positions or another "
                "model.position."
            )
        # The encodings of 0 .. t-1 once, then looked up: cheaper than b·t·w sines.
        table = self._encode(torch.arange(length, device=embedded.device), embedded.shape[2])
        return self._join(embedded, nn.functional.embedding(positions, table.to(embedded.dtype)))

    def at(self, embedded: Float[Tensor, "b n w"], positions: Int[Tensor, "#b #n"]) -> Float[Tensor, "b n w2"]:
        """Encode part of a document, whose position numbers may exceed the length of the batch.

        Raises UserError for a number beyond the learned positions.
        """
        # A call of the module, so that hooks fetch offloaded weights.
        encoded: Tensor = self(embedded, positions, each=True)
        return encoded

    def _at(self, embedded: Tensor, positions: Tensor) -> Tensor:
        positions = self._wrapped(positions).expand(embedded.shape[:2])
        if self.name == "learned" and (last := int(positions.max())) >= self.max_positions:
            raise UserError(
                f"expected at most {self.max_positions} tokens for learned positions, got token {last + 1}; stop "
                "there, or train with a larger model.max_positions or another model.position."
            )
        return self._join(embedded, self._encode(positions, embedded.shape[2]).to(embedded.dtype))

    def _wrapped(self, positions: Tensor) -> Tensor:
        return positions if self.period is None else positions % self.period

    def _encode(self, positions: Int[Tensor, "*n"], width: int) -> Float[Tensor, "*n w"]:
        if self.name == "learned":
            # Padding may extend beyond the table.
            encoded: Tensor = self.table(positions.clamp_max(self.max_positions - 1))
        elif self.name == "sinusoidal":
            encoded = sinusoid(positions, width) * (self.log_scale.exp() * width**-0.5)
        else:
            coordinates = (positions.float() * (math.pi / self.max_positions)).unsqueeze(-1)
            encoded = self.project(fourier_features(coordinates, self.levels).to(self.project.weight.dtype))
        return encoded

    def _join(self, embedded: Tensor, encoded: Tensor) -> Tensor:
        return torch.cat((embedded, encoded), -1) if self.combine == "concat" else embedded + encoded


def count_positions(mask: Tensor) -> Int[Tensor, "b t"]:
    """Return each token's position, 0 at the row's first real token, so that left padding shifts nothing."""
    return (mask.long().cumsum(1) - 1).clamp_min(0)
