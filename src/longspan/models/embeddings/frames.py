"""Frames as vectors: convolutions over neighbours, the first of which may leave out frames."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.models.embeddings.base import Embeddings
from longspan.models.settings import EmbeddingSettings, check_sizes, from_data
from longspan.ops.dropout import Dropout


@strict
@dataclass
class FrameSettings(EmbeddingSettings):
    """How frames, as of recordings, become vectors.

    Args:
        kernel: width of the convolutions, in frames for the first and in positions for the others; odd.
        stride: frames for each position of the model: 2 halves the cost of the layers.
        convolutions: number of convolutions, with GELU between them.
        channels: numbers in a frame.
    """

    kernel: int = 5
    stride: int = 2
    convolutions: int = 2
    channels: int = from_data(1)

    def check(self, config: Any) -> None:
        check_sizes(self, {"kernel": 1, "stride": 1, "convolutions": 1, "channels": 1})
        if self.kernel % 2 == 0:
            raise UserError(f"kernel must be odd, so that it has a middle, got {self.kernel}; choose another.")

    def build(self, config: Any) -> "Frames":
        return Frames(self, config.embedding_dim, config.causal, config.dropout)


class Frames(Embeddings):
    """Vectors of frames (b, t, channels): (b, ⌈t / stride⌉, dim), for each row from its first real frame on.

    Each convolution is followed by a norm over the vector and GELU, the last one by neither. A causal one reads earlier
    frames alone.
    """

    streams = ("input_features",)

    def __init__(self, settings: FrameSettings, dim: int, causal: bool, dropout: float) -> None:
        super().__init__()
        self.output_dim, self.stride, self.causal, self.kernel = dim, settings.stride, causal, settings.kernel
        self.count = settings.convolutions
        self.convolutions = nn.ModuleList(
            nn.Conv1d(dim if place else settings.channels, dim, settings.kernel, 1 if place else settings.stride)
            for place in range(settings.convolutions)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(settings.convolutions - 1))
        self.dropout = Dropout(dropout)

    def forward(
        self,
        streams: Mapping[str, Tensor | None],
        *,
        vectors: Float[Tensor, "b t w"] | None = None,
        mask: Bool[Tensor, "b t"] | None = None,
        document_ids: Int[Tensor, "b t"] | None = None,
        before: Int[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        if vectors is not None:
            return vectors
        x = streams["input_features"]
        assert x is not None
        x = x.to(next(self.parameters()).dtype)
        if mask is not None:
            x = _aligned(x.masked_fill(~mask.unsqueeze(-1), 0), mask)
            mask = self.reduced(mask)
        for place, convolution in enumerate(self.convolutions):
            if place:
                x = self.dropout(nn.functional.gelu(self.norms[place - 1](x)))
                x = x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0)
            ahead = 0 if self.causal else self.kernel // 2
            padded = nn.functional.pad(x.mT, (self.kernel - 1 - ahead, ahead))
            x = convolution(padded).mT
        return x if mask is None else x.masked_fill(~mask.unsqueeze(-1), 0)

    def reduced(self, mask: Bool[Tensor, "b t"]) -> Bool[Tensor, "b p"]:
        positions = -(-mask.shape[1] // self.stride)
        counts = -(-mask.sum(1, keepdim=True) // self.stride)
        return torch.arange(positions, device=mask.device) < counts

    @property
    def reach(self) -> int:
        """Frames on either side of a position's own that its vector depends on, a multiple of the stride."""
        frames = (self.kernel - 1) + (self.count - 1) * (self.kernel - 1) * self.stride
        return -(-frames // self.stride) * self.stride


def _aligned(x: Float[Tensor, "b t c"], mask: Bool[Tensor, "b t"]) -> Float[Tensor, "b t c"]:
    """Return rows that begin with their first real frame: strides count from there."""
    first = mask.int().argmax(1, keepdim=True)
    places = torch.arange(x.shape[1], device=x.device) + first
    # What comes after the end of a row is padding, as what comes before its beginning is.
    return x.gather(1, (places % x.shape[1]).unsqueeze(-1).expand_as(x))
