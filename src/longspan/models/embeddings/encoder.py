"""Tokens as a pretrained encoder reads them, in overlapping windows, instead of vectors of their own."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.models.embeddings.base import Embeddings
from longspan.models.settings import EmbeddingSettings, from_data
from longspan.models.window_encoder import STAND_IN, WindowEncoder
from longspan.options import REQUIRED, Range, option


@strict
@dataclass
class EncoderSettings(EmbeddingSettings):
    """Settings of the pretrained encoder that reads the tokens."""

    stand_in: ClassVar[Mapping[str, Any]] = {"encoder_config": STAND_IN}

    encoder: str = option(
        REQUIRED,
        "name on the Hugging Face Hub, or folder, of a pretrained model (`AutoModel`) whose outputs replace word "
        "vectors. It reads documents in overlapping windows of its own tokens; a linear map connects its width and "
        "`embedding_dim`.",
    )
    encoder_window: int | None = option(
        None, "tokens in a window, special tokens included; None means as many as the encoder can read", Range(1)
    )
    encoder_overlap: int | None = option(
        None,
        "tokens that neighbouring windows share at least; each token is taken from the window in which it is farther "
        "from the ends. None means a quarter of a window.",
        Range(0),
    )
    train_encoder: bool = option(
        False, "whether the encoder is trained, too; if not, its outputs are computed once and kept on disk"
    )
    encoder_config: dict[str, Any] | None = from_data(
        None, "the settings of the encoder's own configuration, found when it is read"
    )
    encoder_special_ids: list[list[int]] | None = from_data(
        None, "the ids of the special tokens that it expects before and after a text, found likewise"
    )

    @property
    def pretrained(self) -> str:
        return self.encoder

    def check(self, config: Any) -> None:
        for name, why in (
            ("causal", "it sees what follows a token, too"),
            ("scale_embeddings", "its outputs take the place of word vectors"),
        ):
            if getattr(config, name):
                raise UserError(
                    f"expected model.{name} only without a pretrained encoder, as {why}, got {name}=True with "
                    f"encoder={self.encoder!r}; leave one of them out."
                )

    def build(self, config: Any) -> "EncoderEmbeddings":
        return EncoderEmbeddings(config, self)


class EncoderEmbeddings(Embeddings):
    """Outputs of a pretrained encoder for each of `input_ids` (b, t), through a linear map.

    `inputs_embeds` are what the encoder returns, and `input_ids` may be given with them.
    """

    streams = ("input_ids",)
    reads_beside_vectors = True

    def __init__(self, config: Any, settings: EncoderSettings) -> None:
        super().__init__()
        self.output_dim = config.embedding_dim
        self.encoder = WindowEncoder(settings, pad_id=config.pad_token_id or 0)
        self.map = nn.Linear(self.encoder.width, self.output_dim)

    def forward(
        self,
        streams: Mapping[str, Tensor | None],
        *,
        vectors: Tensor | None = None,
        mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        before: Tensor | None = None,
    ) -> Tensor:
        if vectors is None:
            vectors = self.encoder(streams["input_ids"], mask, document_ids)
        mapped: Tensor = self.map(vectors.to(self.map.weight.dtype))
        return mapped

    def encode(self, stream: Tensor | None, mask: Tensor | None = None) -> Tensor | None:
        return None if stream is None else self.encoder(stream, mask)

    def get_input_embeddings(self) -> nn.Module:
        table: nn.Module = self.encoder.model.get_input_embeddings()
        return table
