"""The configuration of every longspan model."""

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from longspan.errors import UserError, check_choice

POOLINGS = ("attention", "mean", "first")


@strict
class LongspanConfig(PreTrainedConfig):
    """Shape of a longspan model; `transformers`' own names (hidden_size, ...) work for the first three.

    Args:
        vocab_size: number of token ids.
        dim: width of the model.
        depth: number of layers.
        heads: heads of each mixer that has them.
        feed_forward_dim: hidden width of the feed-forward networks; None is 4 * dim, 0 leaves them out.
        mixers: names of the mixers, tiled over the depth: ["additive"], or a hybrid like ["additive", "softmax"].
        mixer_options: options per mixer, {"additive": {"sharing": "none"}}.
        causal: whether positions see only themselves and those before.
        position: "sinusoidal", "learned", "fourier" or "none".
        position_combine: "add" or "concat".
        max_positions: most tokens with learned positions; the scale of fourier positions.
        embedding_dim: width of the word vectors when not that of the model (a linear map joins the two). None is dim,
            or dim / 2 when positions are concatenated.
        norm: "pre", "post" (which also normalises the embeddings, as BERT does) or "none".
        residual: whether blocks add their input to their output.
        share_layers: whether layers share their weights.
        dropout: dropout of the embeddings, the mixers and the feed-forward networks.
        token_dropout: probability with which whole tokens are zeroed in training, before positions are added.
        classifier_dropout: dropout before the classifier; None is `dropout`.
        pooling: how a document becomes one vector: "attention" (additive pooling), "mean" or "first".
        label_smoothing: share of the target spread evenly over all classes in the classification loss.
        initializer_range: standard deviation of new weights.
        pad_token_id: the id of padding, whose embedding stays zero.

    Raises:
        UserError: for an unknown pooling, or sizes that cannot be.
    """

    model_type = "longspan"
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "dim",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
    }

    vocab_size: int = 16000
    dim: int = 256
    depth: int = 2
    heads: int = 16
    feed_forward_dim: int | None = None
    mixers: list[str] | None = None
    mixer_options: dict[str, dict[str, Any]] | None = None
    causal: bool = False
    position: str = "sinusoidal"
    position_combine: str = "add"
    max_positions: int = 4096
    embedding_dim: int | None = None
    norm: str = "pre"
    residual: bool = True
    share_layers: bool = False
    dropout: float | int = 0.1
    token_dropout: float | int = 0.0
    classifier_dropout: float | int | None = None
    pooling: str = "attention"
    label_smoothing: float | int = 0.0
    initializer_range: float = 0.02
    pad_token_id: int | None = 0

    def __post_init__(self, **kwargs: Any) -> None:
        self.mixers = ["additive"] if self.mixers is None else self.mixers
        self.mixer_options = {} if self.mixer_options is None else self.mixer_options
        if self.feed_forward_dim is None:
            self.feed_forward_dim = 4 * self.dim
        if self.embedding_dim is None:
            self.embedding_dim = self.dim // 2 if self.position_combine == "concat" else self.dim
        check_choice("pooling", self.pooling, POOLINGS)
        for name, least in (("dim", 1), ("depth", 0), ("heads", 1), ("vocab_size", 1), ("max_positions", 1)):
            if getattr(self, name) < least:
                raise UserError(f"{name} must be at least {least}, got {getattr(self, name)}; choose a larger one.")
        super().__post_init__(**kwargs)
