"""Patches of images as vectors, or pixels where a patch is one: a linear map or convolutions, and positions."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.models.embeddings.base import Embeddings
from longspan.models.parts.grid_positions import NAMES, GridPositions
from longspan.models.settings import EmbeddingSettings, from_data
from longspan.options import Range, option

#: What the streams of an image are called: its patches, (b, t, patch * patch * channels) from 0 to 255, and their row
#: and column, (b, t, 2).
PIXELS, COORDINATES = "pixel_values", "coordinates"


@strict
@dataclass
class PatchSettings(EmbeddingSettings):
    """Settings of embeddings of image patches."""

    grid_position: str = option(
        "fourier",
        'positions in two dimensions, added to the vectors: "fourier" (features of the coordinates), "learned" (a '
        'vector for each row and each column), "sinusoidal" (per axis) or "none"',
        NAMES,
    )
    stem: int = option(
        0,
        "channels of the first 3 x 3 convolution; 0 for a linear map of each patch without convolutions. Each further "
        "convolution halves height and width and doubles the channels, down to one vector for each patch. "
        "Convolutions also read the pixels of neighbouring patches.",
        Range(0, 4096),
    )
    stem_layers: int = option(
        1, "convolutions of the stem at each height and width, the first of which halves it", Range(1, 16)
    )
    stem_norm: str = option(
        "layer",
        'norm of the stem: "layer" over the channels of a pixel, then GELU; or "batch" over the pixels of a training '
        "batch, then ReLU, which learns images faster",
        ("layer", "batch"),
    )
    channels: int = from_data(1, "numbers in a patch", Range(1))
    patch: int = from_data(1, "height and width of a patch, in pixels", Range(1))
    side: int = from_data(64, "rows and columns of patches in the largest image", Range(1))

    def check(self, config: Any) -> None:
        check_not_causal(config, self.stem > 0, "stem")
        if self.stem and self.patch & (self.patch - 1):
            raise UserError(
                f"expected patches of 1, 2, 4, 8 ... pixels for a stem of convolutions, got {self.patch}; set "
                "data.patch_size to one of these, or model.stem=0."
            )

    def build(self, config: Any) -> "PatchEmbeddings":
        return PatchEmbeddings(self, config.embedding_dim)


def check_not_causal(config: Any, wanted: bool, name: str) -> None:
    """Raise UserError for a causal model with something that reads pixels ahead."""
    if wanted and config.causal:
        raise UserError(f"{name} reads pixels ahead, got it with causal=True; leave one of them out.")


class PatchEmbeddings(Embeddings):
    """Vectors of patches, from a linear map or from convolutions over the image (Xiao et al. 2021), plus positions.

    Values from 0 to 255 are first scaled to [-2, 2]. Convolutions see zeros outside the image, and where the batch has
    no patch. Each is followed by a norm and an activation. Batch norms (Ioffe and Szegedy 2015) read the patches that
    are there; in training of several processes, each has its own batch.
    """

    streams = (PIXELS, COORDINATES)

    def __init__(self, settings: PatchSettings, dim: int) -> None:
        super().__init__()
        self.output_dim, self.patch = dim, settings.patch
        self.colours = settings.channels // settings.patch**2
        self.positions = GridPositions(settings.grid_position, dim, settings.side)
        self.convolutions = nn.ModuleList()
        self.norms = nn.ModuleList()
        width = settings.channels
        if settings.stem:
            before = self.colours
            for halvings in range(settings.patch.bit_length()):
                width = settings.stem << halvings
                for layer in range(settings.stem_layers):
                    stride = 2 if halvings and not layer else 1
                    self.convolutions.append(nn.Conv2d(before, width, 3, stride, padding=1))
                    self.norms.append(nn.BatchNorm2d(width) if settings.stem_norm == "batch" else nn.LayerNorm(width))
                    before = width
        self.project = nn.Linear(width, dim)

    def embed(self, streams: Mapping[str, Tensor | None], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b t d"]:
        values, coordinates = image_streams(streams)
        x = (values.to(self.project.weight.dtype) / 255 - 0.5) * 4
        if self.convolutions:
            x = self._convolved(x, coordinates, mask)
        x = self.project(x)
        positions = self.positions(coordinates)
        return x if positions is None else x + positions.to(x.dtype)

    def _convolved(self, x: Tensor, coordinates: Tensor, mask: Tensor | None) -> Tensor:
        """Outputs of the convolutions for patches (b, t, n) at their places, (b, t, w)."""
        if mask is None:
            mask = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device)
        image, place = images_of(x, coordinates, mask, self.patch)
        rows, columns = image.shape[2] // self.patch, image.shape[3] // self.patch
        there = mask.new_zeros(len(x), rows * columns + 1).scatter(1, place, True)[:, :-1].view(-1, 1, rows, columns)
        # The norms need no copies of channels that come last.
        image = image.contiguous(memory_format=torch.channels_last)
        whole = bool(there.all())
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            image = convolution(image)
            scale = image.shape[2] // rows
            real = there.repeat_interleave(scale, 2).repeat_interleave(scale, 3)
            if isinstance(norm, nn.BatchNorm2d):
                image = nn.functional.relu(_batch_normed(norm, image, None if whole else real))
            else:
                image = nn.functional.gelu(norm(image.permute(0, 2, 3, 1))).permute(0, 3, 1, 2)
            if not whole:
                image = image.masked_fill(~real, 0)
        cells = image.flatten(2).mT
        place = place.clamp_max(rows * columns - 1)
        return cells.gather(1, place.unsqueeze(-1).expand(-1, -1, cells.shape[2]))


def images_of(
    patches: Float[Tensor, "b t n"], coordinates: Int[Tensor, "b t 2"], mask: Bool[Tensor, "b t"], size: int
) -> tuple[Float[Tensor, "b c h w"], Int[Tensor, "b t"]]:
    """Images that patches, `size` pixels high and wide, are of, 0 where there is none; and the place of each patch.

    Places are numbered row by row; that of padding is the one after the last.
    """
    batch, colours = len(patches), patches.shape[2] // size**2
    # What stands at padding is not written anywhere.
    rows, columns = (int(axis.max()) + 1 for axis in coordinates.masked_fill(~mask.unsqueeze(-1), 0).unbind(-1))
    place = (coordinates[..., 0].long() * columns + coordinates[..., 1]).masked_fill(~mask, rows * columns)
    grid = patches.new_zeros(batch, rows * columns + 1, patches.shape[2])
    grid = grid.scatter(1, place.unsqueeze(-1).expand_as(patches), patches)[:, :-1]
    image = grid.view(batch, rows, columns, size, size, colours).permute(0, 5, 1, 3, 2, 4)
    return image.reshape(batch, colours, rows * size, columns * size), place


def _batch_normed(norm: nn.BatchNorm2d, image: Tensor, real: Tensor | None) -> Tensor:
    """Image after a batch norm, whose statistics are those of pixels that are real, (b, 1, h, w); None for all."""
    if real is None or not norm.training:
        return norm(image)
    pixels, found = image.permute(0, 2, 3, 1), torch.zeros_like(image).permute(0, 2, 3, 1)
    place = real.squeeze(1)
    found[place] = norm(pixels[place].T[None, :, :, None])[0, :, :, 0].T
    return found.permute(0, 3, 1, 2)


def image_streams(streams: Mapping[str, Tensor | None]) -> tuple[Tensor, Tensor]:
    """Return the two streams of images. Raises UserError if one is missing."""
    values, coordinates = streams.get(PIXELS), streams.get(COORDINATES)
    if values is None or coordinates is None:
        raise UserError(
            f"expected {PIXELS} and {COORDINATES} of images, got one of them; give both, as LongspanImageProcessor "
            "returns them."
        )
    return values, coordinates
