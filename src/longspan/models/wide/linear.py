"""Linear models over fixed features: `LinearPart`, of recordings `RecordingPart`, frames `FramePart`, `GraphPart`."""

import math
from abc import abstractmethod

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.models.embeddings.nodes import feature_sums
from longspan.models.wide.base import ScaledPart

#: Cepstral coefficients of a frame, and equal parts of a recording that have features of their own.
COEFFICIENTS, SEGMENTS = 20, 5
#: Neighbours of a frame that are read with it, in frames.
OFFSETS = (-12, -9, -6, -3, 0, 3, 6, 9, 12)
#: Degrees from here on are one feature, and types of nodes up to which pairs of them are features.
LARGEST_DEGREE, PAIRED = 32, 32


class LinearPart(ScaledPart):
    """A linear model over features that are computed, not learned, from the streams of an example.

    Args:
        features: Number of features.
        classes: Number of classes.
    """

    weight: Tensor
    bias: Tensor

    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("weight", torch.empty(features, classes))
        self.register_buffer("bias", torch.empty(classes))
        self.reset_parameters()

    @abstractmethod
    def features(
        self, mask: Bool[Tensor, "b t"] | None, counts: Float[Tensor, "b p"] | None, **streams: Tensor | None
    ) -> Float[Tensor, "*n f"]:
        """Return the features of examples, or of their positions, in float32.

        Args:
            mask: True at real positions of the main stream.
            counts: How often each position of the model counts (`ops.counts`).
            streams: What else the model reads.
        """

    def forward(
        self,
        mask: Bool[Tensor, "b t"] | None = None,
        counts: Float[Tensor, "b p"] | None = None,
        **streams: Tensor | None,
    ) -> Float[Tensor, "*n c"]:
        """Return the logits in float32; see `features`."""
        return self.features(mask, counts, **streams) @ self.weight.float() + self.bias.float()


class RecordingPart(LinearPart):
    """A linear model over cepstral coefficients of recordings: means and deviations of all frames, and of each fifth.

    The coefficients of a frame are its discrete cosine transform, of log-mel bands MFCCs (Davis and Mermelstein 1980).

    Args:
        channels: Numbers in a frame.
        classes: Number of classes.
    """

    def __init__(self, channels: int, classes: int) -> None:
        self.coefficients = min(COEFFICIENTS, channels)
        super().__init__(2 * (SEGMENTS + 1) * self.coefficients, classes)

    def features(
        self,
        mask: Bool[Tensor, "b t"] | None,
        counts: Float[Tensor, "b p"] | None,
        input_features: Float[Tensor, "b t c"] | None = None,
        **streams: Tensor | None,
    ) -> Float[Tensor, "b f"]:
        assert input_features is not None
        cepstra = input_features.float() @ _cosines(input_features.shape[2], self.coefficients, input_features.device)
        rows, frames = cepstra.shape[:2]
        real = cepstra.new_ones(rows, frames) if mask is None else mask.to(cepstra.dtype)
        place = real.cumsum(1) - 1
        segment = (place * SEGMENTS / real.sum(1, keepdim=True).clamp_min(1)).long().clamp(0, SEGMENTS - 1)
        if counts is not None:
            real = real * counts.to(real.dtype).repeat_interleave(-(-frames // counts.shape[1]), 1)[:, :frames]
        shares = nn.functional.one_hot(segment, SEGMENTS).to(cepstra.dtype) * real.unsqueeze(-1)
        shares = torch.cat((shares, real.unsqueeze(-1)), -1)
        shares = shares / shares.sum(1, keepdim=True).clamp_min(1e-6)
        mean = shares.mT @ cepstra
        spread = deviation(shares.mT @ cepstra.square() - mean.square())
        return torch.cat((mean, spread), 2).flatten(1)


class FramePart(LinearPart):
    """A linear model over cepstral coefficients of a frame and its neighbours, for each position of a recording.

    A position stands for its middle frame. Before a recording's first frame is that frame, after its last one the last.

    Args:
        channels: Numbers in a frame.
        classes: Number of classes.
        stride: Frames of a position.
    """

    def __init__(self, channels: int, classes: int, stride: int) -> None:
        self.coefficients, self.stride = min(COEFFICIENTS, channels), stride
        super().__init__(len(OFFSETS) * self.coefficients, classes)

    def features(
        self,
        mask: Bool[Tensor, "b t"] | None,
        counts: Float[Tensor, "b p"] | None,
        input_features: Float[Tensor, "b t c"] | None = None,
        **streams: Tensor | None,
    ) -> Float[Tensor, "b p f"]:
        assert input_features is not None
        device, (rows, frames, channels) = input_features.device, input_features.shape
        cepstra = input_features.float() @ _cosines(channels, self.coefficients, device)
        real = torch.ones(rows, frames, dtype=torch.bool, device=device) if mask is None else mask
        middle = torch.arange(-(-frames // self.stride), device=device) * self.stride + self.stride // 2
        places = (middle.unsqueeze(1) + torch.tensor(OFFSETS, device=device)).flatten().clamp_min(0)
        places = torch.minimum(places, (real.sum(1, keepdim=True) - 1).clamp_min(0))
        # Rows may begin with padding.
        first = real.int().argmax(1, keepdim=True)
        found = cepstra.gather(1, (first + places).unsqueeze(-1).expand(-1, -1, self.coefficients))
        if counts is not None:
            found = found * counts.float().gather(1, places // self.stride).unsqueeze(-1)
        return found.unflatten(1, (len(middle), len(OFFSETS))).flatten(2)


class GraphPart(LinearPart):
    """A linear model over logarithms of numbers of nodes: of each type, of each degree, and of edges between two types.

    Args:
        types: Number of features of a node, its type among them.
        classes: Number of classes.
    """

    def __init__(self, types: int, classes: int) -> None:
        self.types, self.pairs = types, types if types <= PAIRED else 0
        super().__init__(types + LARGEST_DEGREE + 1 + self.pairs**2, classes)

    def features(
        self,
        mask: Bool[Tensor, "b t"] | None,
        counts: Float[Tensor, "b t"] | None,
        nodes: Int[Tensor, "b t"] | None = None,
        columns: Int[Tensor, "b k"] | None = None,
        values: Float[Tensor, "b k"] | None = None,
        edges: Int[Tensor, "3 m"] | None = None,
        **streams: Tensor | None,
    ) -> Float[Tensor, "b f"]:
        assert nodes is not None
        real = torch.ones(nodes.shape, device=nodes.device) if mask is None else mask.float()
        real = real if counts is None else real * counts.float()
        own = feature_sums(nodes, columns, values, torch.eye(self.types, device=nodes.device)) * real.unsqueeze(-1)
        degrees, pairs = torch.zeros_like(real), own.new_zeros(len(nodes), self.pairs, self.pairs)
        if edges is not None:
            row, source, target = edges[:, edges[1] != edges[2]]
            degrees = degrees.index_put((row, target), real[row, source], accumulate=True)
            if self.pairs:
                joined = own[row, source].unsqueeze(2) * own[row, target].unsqueeze(1)
                pairs = pairs.index_add(0, row, joined)
        # Counts in between, as explanations have, are shared by two degrees.
        order = torch.arange(LARGEST_DEGREE + 1, device=nodes.device)
        shares = (1 - (degrees.clamp_max(LARGEST_DEGREE).unsqueeze(-1) - order).abs()).clamp_min(0)
        return torch.cat((own.sum(1), (shares * real.unsqueeze(-1)).sum(1), pairs.flatten(1)), 1).log1p()


def deviation(variance: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
    """Square roots of differences of rounded sums, 0 for constants, where a square root has no derivative."""
    varies = variance > 1e-10
    return variance.where(varies, 1).sqrt().where(varies, 0)


def _cosines(channels: int, count: int, device: torch.device) -> Float[Tensor, "c k"]:
    """Matrix of the first `count` coefficients of an orthonormal discrete cosine transform."""
    place = torch.arange(channels, device=device).unsqueeze(1) + 0.5
    order = torch.arange(count, device=device)
    found = (math.pi / channels * place * order).cos() * (2 / channels) ** 0.5
    return torch.where(order == 0, found / 2**0.5, found)
