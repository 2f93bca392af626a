"""A linear model over gradients and colours of images: `PicturePart`."""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.models.embeddings.patches import images_of
from longspan.models.wide.linear import LinearPart, deviation

#: Directions of gradients without their sign, and cells on each side of an image that have histograms of them and
#: moments of colours.
DIRECTIONS, CELLS, COLOUR_CELLS = 9, 8, 4


class PicturePart(LinearPart):
    """A linear model over histograms of gradients of an image, and means and deviations of its colours.

    Histograms of oriented gradients (Dalal and Triggs 2005) are those of 8 x 8 cells of the mean of channels. Each is
    divided by the norms of the four blocks of 2 x 2 cells it is in, and the quotients are averaged. Colours are those
    of 4 x 4 cells. Cells are equal parts of an image of any size. Cost: linear in the pixels.

    Args:
        patch: Pixels on each side of a patch.
        channels: Numbers in a patch.
        classes: Number of classes.
    """

    def __init__(self, patch: int, channels: int, classes: int) -> None:
        self.patch = patch
        super().__init__(CELLS**2 * DIRECTIONS + COLOUR_CELLS**2 * 2 * (channels // patch**2), classes)

    def features(
        self,
        mask: Bool[Tensor, "b t"] | None,
        counts: Float[Tensor, "b t"] | None,
        pixel_values: Tensor | None = None,
        coordinates: Int[Tensor, "b t 2"] | None = None,
        **streams: Tensor | None,
    ) -> Float[Tensor, "b f"]:
        assert pixel_values is not None
        assert coordinates is not None
        if mask is None:
            mask = torch.ones(coordinates.shape[:2], dtype=torch.bool, device=coordinates.device)
        weights = mask.float() if counts is None else mask * counts.float()
        weights = weights.unsqueeze(-1).expand(-1, -1, self.patch**2)
        colours, _ = images_of(pixel_values.float() / 255, coordinates, mask, self.patch)
        weight, _ = images_of(weights, coordinates, mask, self.patch)
        sizes = (coordinates.masked_fill(~mask.unsqueeze(-1), 0).amax(1).long() + 1) * self.patch
        return torch.cat((_gradients(colours.mean(1), weight[:, 0], sizes), _colours(colours, weight, sizes)), 1)


def _cells(sizes: Int[Tensor, "b 2"], count: int, height: int, width: int) -> Int[Tensor, "b h w"]:
    """Number of the cell of each pixel, of `count` cells on each side of images of these heights and widths."""
    down, right = (torch.arange(side, device=sizes.device) for side in (height, width))
    row, column = (axis * count // side for axis, side in zip((down, right), sizes[:, :, None].unbind(1), strict=True))
    return (row.unsqueeze(2) * count + column.unsqueeze(1)).clamp_max(count**2 - 1)


def _gradients(
    grey: Float[Tensor, "b h w"], weight: Float[Tensor, "b h w"], sizes: Int[Tensor, "b 2"]
) -> Float[Tensor, "b f"]:
    """Normalised histograms of gradients; pixels at the edge of an image have none."""
    middle, batch = (..., slice(1, -1), slice(1, -1)), len(grey)
    above, below = (..., slice(None, -2), slice(1, -1)), (..., slice(2, None), slice(1, -1))
    left, right = (..., slice(1, -1), slice(None, -2)), (..., slice(1, -1), slice(2, None))
    if min(grey.shape[1:]) < 3:
        return grey.new_zeros(batch, CELLS**2 * DIRECTIONS)
    dy, dx = grey[below] - grey[above], grey[right] - grey[left]
    size = torch.hypot(dy, dx) * weight[middle] * weight[above] * weight[below] * weight[left] * weight[right]
    place = torch.atan2(dy, dx).remainder(math.pi) * (DIRECTIONS / math.pi)
    lower = place.floor()
    cell = _cells(sizes, CELLS, *grey.shape[1:])[middle] * DIRECTIONS
    found = grey.new_zeros(batch, CELLS**2 * DIRECTIONS)
    # Each gradient counts for the two nearest directions.
    for more, share in ((0, 1 - (place - lower)), (1, place - lower)):
        at = cell + (lower.long() + more) % DIRECTIONS
        found = found.scatter_add(1, at.flatten(1), (share * size).flatten(1))
    # Cells of large images have more pixels.
    pixels = (sizes.prod(1) / CELLS**2).clamp_min(1)
    cells = (found / pixels.unsqueeze(1)).view(batch, CELLS, CELLS, DIRECTIONS)
    blocks = nn.functional.avg_pool2d(cells.square().sum(-1).unsqueeze(1), 2, 1, 1, divisor_override=1)
    return (cells * nn.functional.avg_pool2d((blocks + 1e-4).rsqrt(), 2, 1).squeeze(1).unsqueeze(-1)).flatten(1)


def _colours(
    colours: Float[Tensor, "b c h w"], weight: Float[Tensor, "b 1 h w"], sizes: Int[Tensor, "b 2"]
) -> Float[Tensor, "b f"]:
    """Means and deviations of colours in each cell; 0 where no pixel counts."""
    cell = _cells(sizes, COLOUR_CELLS, *colours.shape[2:]).flatten(1).unsqueeze(1)

    def sums(values: Float[Tensor, "b k h w"]) -> Float[Tensor, "b k f"]:
        found = values.new_zeros(*values.shape[:2], COLOUR_CELLS**2)
        return found.scatter_add(2, cell.expand(-1, values.shape[1], -1), values.flatten(2))

    total = sums(weight).clamp_min(1e-6)
    mean = sums(colours * weight) / total
    variance = sums(colours.square() * weight) / total - mean.square()
    return torch.cat((mean, deviation(variance)), 1).flatten(1)
