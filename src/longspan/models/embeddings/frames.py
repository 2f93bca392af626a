"""Frames as vectors: convolutions over time, or over time and bands; the first one may leave out frames."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from jaxtyping import Bool, Float
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.models.embeddings.base import Embeddings
from longspan.models.settings import EmbeddingSettings, from_data
from longspan.ops.dropout import Dropout
from longspan.ops.packing import zero_padding
from longspan.ops.pooling import accumulation_dtype
from longspan.options import Range, option


@strict
@dataclass
class FrameSettings(EmbeddingSettings):
    """Settings of embeddings of frames, as of recordings."""

    kernel: int = option(
        5, "width of the convolutions, in frames for the first and in positions for the others; odd", Range(1)
    )
    stride: int = option(2, "frames for each position of the model: 2 halves the cost of the layers", Range(1))
    convolutions: int = option(2, "number of convolutions, with GELU between them", Range(1, 16))
    stem: int = option(
        0,
        "channels of the first of convolutions over time and bands; 0 for convolutions over time alone. Each halves "
        "the number of bands and doubles the channels. A voice that is a little higher then looks alike, some bands "
        "further up. It suits mel bands, not samples.",
        Range(0, 4096),
    )
    stem_norm: str = option(
        "layer",
        'norm of the stem: "layer" over the channels and bands of each position; or "recording" over the positions and '
        "bands of a recording, for each channel (instance norm). Silence then stays quiet, which a layer norm makes as "
        "loud as speech, and what a microphone adds to all of a recording is gone. Not for causal models.",
        ("layer", "recording"),
    )
    channels: int = from_data(1, "numbers in a frame", Range(1))

    def check(self, config: Any) -> None:
        if self.kernel % 2 == 0:
            raise UserError(f"kernel must be odd, so that it has a middle, got {self.kernel}; choose another.")
        if self.stem and self.stem_norm == "recording" and config.causal:
            raise UserError(
                "expected stem_norm='layer' for a causal model, got 'recording', which reads frames ahead; set 'layer'."
            )

    def build(self, config: Any) -> "Frames":
        kind = BandFrames if self.stem else TimeFrames
        return kind(self, config.embedding_dim, config.causal, config.dropout)


class Frames(Embeddings):
    """Vectors of frames (b, t, channels): (b, ⌈t / stride⌉, dim), for each row from its first real frame on.

    A causal one reads earlier frames alone. What stands at padding is zero, also between convolutions.
    """

    streams = ("input_features",)

    def __init__(self, settings: FrameSettings, dim: int, causal: bool) -> None:
        super().__init__()
        self.output_dim, self.stride, self.kernel = dim, settings.stride, settings.kernel
        self.count = settings.convolutions
        ahead = 0 if causal else self.kernel // 2
        self.padding = (self.kernel - 1 - ahead, ahead)

    def embed(self, streams: Mapping[str, Tensor | None], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b p d"]:
        x = streams["input_features"]
        assert x is not None
        x = x.to(next(self.parameters()).dtype)
        if mask is not None:
            x = _aligned(zero_padding(x, mask), mask)
            mask = self.reduced(mask)
        return zero_padding(self.convolved(x, mask), mask)

    @abstractmethod
    def convolved(self, x: Float[Tensor, "b t c"], mask: Bool[Tensor, "b p"] | None) -> Float[Tensor, "b p d"]:
        """Return vectors of frames that are zero at padding. `mask` is that of the vectors."""

    def reduced(self, mask: Bool[Tensor, "b t"]) -> Bool[Tensor, "b p"]:
        positions = -(-mask.shape[1] // self.stride)
        counts = -(-mask.sum(1, keepdim=True) // self.stride)
        return torch.arange(positions, device=mask.device) < counts

    @property
    def reach(self) -> int:
        """Frames on either side of a position's own that its vector depends on, a multiple of the stride."""
        frames = (self.kernel - 1) + (self.count - 1) * (self.kernel - 1) * self.stride
        return -(-frames // self.stride) * self.stride


class TimeFrames(Frames):
    """Frames after convolutions over time.

    Each is followed by a norm over the vector and GELU, the last one by neither.
    """

    def __init__(self, settings: FrameSettings, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(settings, dim, causal)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(dim if place else settings.channels, dim, self.kernel, 1 if place else self.stride)
            for place in range(self.count)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(self.count - 1))
        self.dropout = Dropout(dropout)

    def convolved(self, x: Float[Tensor, "b t c"], mask: Bool[Tensor, "b p"] | None) -> Float[Tensor, "b p d"]:
        for place, convolution in enumerate(self.convolutions):
            if place:
                x = zero_padding(self.dropout(nn.functional.gelu(self.norms[place - 1](x))), mask)
            x = convolution(nn.functional.pad(x.mT, self.padding)).mT
        return x


class BandFrames(Frames):
    """Frames after convolutions over time and three neighbouring bands, as images, and a linear map.

    Each halves the bands, and is followed by a norm and GELU.
    """

    def __init__(self, settings: FrameSettings, dim: int, causal: bool, dropout: float) -> None:
        super().__init__(settings, dim, causal)
        self.convolutions, self.norms = nn.ModuleList(), nn.ModuleList()
        before, width, bands = 1, settings.stem, settings.channels
        for place in range(self.count):
            stride = (1 if place else self.stride, 2)
            self.convolutions.append(nn.Conv2d(before, width, (self.kernel, 3), stride, padding=(0, 1)))
            bands = -(-bands // 2)
            self.norms.append(
                RecordingNorm(width) if settings.stem_norm == "recording" else nn.LayerNorm((width, bands))
            )
            before, width = width, 2 * width
        self.project = nn.Linear(before * bands, dim)
        self.dropout = Dropout(dropout)

    def convolved(self, x: Float[Tensor, "b t c"], mask: Bool[Tensor, "b p"] | None) -> Float[Tensor, "b p d"]:
        x = x.unsqueeze(1)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = convolution(nn.functional.pad(x, (0, 0, *self.padding)))
            x = x.transpose(1, 2)
            x = nn.functional.gelu(norm(x, mask) if isinstance(norm, RecordingNorm) else norm(x))
            x = (x if mask is None else x.masked_fill(~mask[:, :, None, None], 0)).transpose(1, 2)
        return self.project(self.dropout(x.transpose(1, 2).flatten(2)))


class RecordingNorm(nn.GroupNorm):
    """Channels with mean 0 and deviation 1 over the positions and bands of a recording (Ulyanov et al. 2016)."""

    def __init__(self, channels: int) -> None:
        super().__init__(channels, channels)

    def forward(  # type: ignore[override]
        self, x: Float[Tensor, "b p c f"], mask: Bool[Tensor, "b p"] | None
    ) -> Float[Tensor, "b p c f"]:
        wide = x.to(accumulation_dtype(x.dtype))
        real = wide.new_ones(x.shape[:2]) if mask is None else mask.to(wide.dtype)
        shares = (real / (real.sum(1, keepdim=True).clamp_min(1) * x.shape[3]))[:, :, None, None]
        centred = wide - (wide * shares).sum((1, 3), keepdim=True)
        variance = (centred.square() * shares).sum((1, 3), keepdim=True)
        found = (centred * (variance + self.eps).rsqrt()).to(x.dtype)
        return found * self.weight.unsqueeze(1) + self.bias.unsqueeze(1)


def _aligned(x: Float[Tensor, "b t c"], mask: Bool[Tensor, "b t"]) -> Float[Tensor, "b t c"]:
    """Return rows that begin with their first real frame: strides count from there."""
    first = mask.int().argmax(1, keepdim=True)
    places = torch.arange(x.shape[1], device=x.device) + first
    # What comes after the end of a row is padding, as what comes before its beginning is.
    return x.gather(1, (places % x.shape[1]).unsqueeze(-1).expand_as(x))
