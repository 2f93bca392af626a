"""Base class of embeddings: the one interface that `LongspanModel` and the tools rely on."""

from abc import ABC
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


class Embeddings(nn.Module, ABC):
    """Vectors of what the streams of a batch hold, one for each position of the main stream, before positions.

    Attributes:
        streams: names of the streams that it reads, the main one first, whose mask is the model's `attention_mask`.
        output_dim: width of the vectors.
        reads_beside_vectors: whether the main stream may be given with `inputs_embeds`.
        drops_tokens: whether it applies `token_dropout` itself.
    """

    streams: ClassVar[tuple[str, ...]]
    output_dim: int
    reads_beside_vectors: ClassVar[bool] = False

    @property
    def drops_tokens(self) -> bool:
        return False

    @property
    def takes_slices(self) -> bool:
        """Whether rows may be slices of longer ones (`longspan.ops.slices`)."""
        return False

    def forward(
        self,
        streams: Mapping[str, Tensor | None],
        *,
        vectors: Float[Tensor, "b t w"] | None = None,
        mask: Bool[Tensor, "b t"] | None = None,
        document_ids: Int[Tensor, "b t"] | None = None,
        before: Int[Tensor, "b n"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        """Return the vectors.

        Args:
            streams: Those of the batch that it reads, by name.
            vectors: Vectors in place of the main stream (`inputs_embeds`), 0 at padding.
            mask: True at real positions.
            document_ids: Numbers of packed documents.
            before: Result of `remembered` for the positions before these, in a causal model.
        """
        return self.embed(streams, mask) if vectors is None else vectors

    def embed(self, streams: Mapping[str, Tensor | None], mask: Bool[Tensor, "b t"] | None) -> Float[Tensor, "b p d"]:
        """Return the vectors of streams, for embeddings that read neither `document_ids` nor `before`."""
        raise NotImplementedError

    def position_vectors(
        self, stream: Tensor | None, vectors: Float[Tensor, "b t w"] | None = None
    ) -> Float[Tensor, "b t d"]:
        """Return the vectors of the main stream's positions, each by itself, without what its neighbours add."""
        found: Tensor = self({self.streams[0]: stream}, vectors=vectors)
        return found

    def reduced(self, mask: Bool[Tensor, "b t"]) -> Bool[Tensor, "b p"]:
        """Return the mask of the vectors, given that of the main stream: by default there is one for each position."""
        return mask

    def encode(self, stream: Tensor | None, mask: Bool[Tensor, "b t"] | None = None) -> Float[Tensor, "b t w"] | None:
        """Outputs of a pretrained encoder for the main stream, for `vectors`; None without one."""
        return None

    def first(self, batch_size: int, device: torch.device) -> Int[Tensor, "b n"] | None:
        """Value of `remembered` before the first position; None if nothing has to be remembered."""
        return None

    def remembered(
        self, streams: Mapping[str, Tensor | None], mask: Bool[Tensor, "b t"] | None
    ) -> Int[Tensor, "b t"] | None:
        """State of these positions that later ones need."""
        return None

    def get_input_embeddings(self) -> nn.Module:
        """Return the table of the main stream's vectors, where transformers asks for one."""
        raise NotImplementedError(f"{type(self).__name__} has no table of vectors")

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace that table."""
        raise NotImplementedError(f"{type(self).__name__} has no table of vectors")
