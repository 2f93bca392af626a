"""Pixels as tokens: a learned vector for each level of each channel, and positions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.models.embeddings.base import Embeddings
from longspan.models.embeddings.patches import COORDINATES, PIXELS, image_streams
from longspan.models.parts.grid_positions import NAMES, GridPositions
from longspan.models.settings import EmbeddingSettings, from_data
from longspan.options import REQUIRED, Range, option


@strict
@dataclass
class PixelSettings(EmbeddingSettings):
    """Settings of embeddings of pixels, which become vectors as tokens do."""

    levels: int = option(
        REQUIRED, "number of levels of each channel, from 2 to 256, each with a learned vector", Range(2, 256)
    )
    grid_position: str = option(
        "fourier",
        'positions in two dimensions, added to the vectors: "fourier" (features of the coordinates), "learned" (a '
        'vector for each row and each column), "sinusoidal" (per axis) or "none"',
        NAMES,
    )
    channels: int = from_data(1, "numbers in a pixel", Range(1))
    patch: int = from_data(1, "height and width of a patch, in pixels: 1", Range(1))
    side: int = from_data(64, "rows and columns of the largest image", Range(1))

    def check(self, config: Any) -> None:
        if self.patch != 1:
            raise UserError(
                f"expected single pixels for levels={self.levels}, got patches of {self.patch} x {self.patch}; set "
                "data.patch_size=1, or leave model.levels out."
            )

    def build(self, config: Any) -> "PixelEmbeddings":
        return PixelEmbeddings(self, config.embedding_dim)


class PixelEmbeddings(Embeddings):
    """The sum of the vectors of a pixel's levels, one for each channel, plus positions.

    Values from 0 to 255 are divided evenly into levels.
    """

    streams = (PIXELS, COORDINATES)

    def __init__(self, settings: PixelSettings, dim: int) -> None:
        super().__init__()
        self.output_dim, self.levels = dim, settings.levels
        self.table = nn.Embedding(settings.channels * settings.levels, dim)
        self.positions = GridPositions(settings.grid_position, dim, settings.side)

    def embed(self, streams: Mapping[str, Tensor | None], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b t d"]:
        values, coordinates = image_streams(streams)
        first = torch.arange(values.shape[2], device=values.device) * self.levels
        x = self.table(values.long() * self.levels // 256 + first).sum(2)
        positions = self.positions(coordinates)
        return x if positions is None else x + positions.to(x.dtype)
