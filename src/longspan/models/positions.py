"""Position encodings of a segment from the middle of a document."""

import math

import torch
from torch import Tensor

from longspan.errors import UserError
from longspan.positions import Positions, fourier_features, sinusoid


class ContinuedPositions(Positions):
    """`Positions` for any numbers, not only those below the length of a batch.

    A whole document's encodings are made once per batch and looked up; here each position's is made for itself.
    """

    def at(self, embedded: Tensor, positions: Tensor) -> Tensor:
        """Encode `embedded` (b, n, w) at `positions`, which broadcast to (b, n).

        Raises UserError for a number that learned positions do not reach.
        """
        if self.name == "none":
            return embedded
        positions = positions.expand(embedded.shape[:2])
        if self.name == "learned":
            last = int(positions.max())
            if last >= self.max_positions:
                raise UserError(
                    f"learned positions reach to {self.max_positions} tokens, got token {last + 1} of a sequence; stop "
                    "there, or train with a larger model.max_positions or another model.position."
                )
            encoded = self.table(positions)
        elif self.name == "sinusoidal":
            encoded = sinusoid(positions, embedded.shape[2]) * self.scale
        else:
            coordinates = (positions.float() * (math.pi / self.max_positions)).unsqueeze(-1)
            encoded = self.project(fourier_features(coordinates, self.levels).to(self.project.weight.dtype))
        encoded = encoded.to(embedded.dtype)
        return torch.cat((embedded, encoded), -1) if self.combine == "concat" else embedded + encoded
