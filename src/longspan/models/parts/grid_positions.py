"""Positions in two dimensions: `GridPositions`."""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan.errors import UserError, check_choice
from longspan.models.parts.positions import fourier_features, sinusoid

NAMES = ("fourier", "learned", "sinusoidal", "none")


class GridPositions(nn.Module):
    """Vectors of rows and columns of a grid, which are added to those of its cells.

    - "fourier": a linear map of both coordinates y and their `sin 2^l y`, `cos 2^l y` (Mildenhall et al. 2020).
    - "learned": the sum of a learned vector for the row and one for the column.
    - "sinusoidal": sinusoids of the row in the first half and of the column in the second half, times a learned scale
      (as in DETR, Carion et al. 2020).

    Args:
        name: One of `NAMES`.
        dim: Width of the vectors.
        side: Number of rows and columns of the largest grid. "learned" has vectors for as many. The lowest frequency of
            "fourier" has a half-period of this size.

    Raises:
        UserError: The name is unknown; in calls, a grid with "learned" has more rows or columns.
    """

    def __init__(self, name: str, dim: int, side: int) -> None:
        super().__init__()
        check_choice("grid_position", name, NAMES)
        self.name, self.dim, self.side = name, dim, side
        if name == "learned":
            self.rows, self.columns = nn.Embedding(side, dim), nn.Embedding(side, dim)
        elif name == "sinusoidal":
            self.log_scale = nn.Parameter(torch.zeros(()))
        elif name == "fourier":
            # Enough levels for the highest frequency to distinguish neighbours.
            self.levels = max(1, math.ceil(math.log2(side)) + 1)
            self.project = nn.Linear(2 * (1 + 2 * self.levels), dim)

    def forward(self, coordinates: Int[Tensor, "b t 2"]) -> Float[Tensor, "b t d"] | None:
        """Return the vectors of rows and columns; None with "none"."""
        if self.name == "none":
            return None
        if self.name == "learned":
            largest = int(coordinates.max()) if coordinates.numel() else 0
            if largest >= self.side:
                raise UserError(
                    f"expected at most {self.side} rows and columns for learned positions, got {largest + 1}; scale "
                    "the image down, or train with another model.grid_position."
                )
            found: Tensor = self.rows(coordinates[..., 0]) + self.columns(coordinates[..., 1])
            return found
        if self.name == "sinusoidal":
            half = self.dim // 2
            both = (sinusoid(coordinates[..., 0], half), sinusoid(coordinates[..., 1], self.dim - half))
            return torch.cat(both, -1) * (self.log_scale.exp() * self.dim**-0.5)
        features = fourier_features(coordinates.float() * (math.pi / self.side), self.levels)
        mapped: Tensor = self.project(features.to(self.project.weight.dtype))
        return mapped
