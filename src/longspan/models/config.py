"""The configuration of every longspan model."""

import copy
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import PreTrainedConfig

from longspan import options
from longspan.errors import UserError
from longspan.models import remote_code, settings
from longspan.models.block import ACTIVATIONS
from longspan.models.settings import DEEPEST, LARGEST, WIDEST, HeadSettings, PartSettings
from longspan.options import Range, check, document, option

#: Types of the layers, and width of the embeddings: a model that starts from another one has the same.
SHAPE = (
    *("dim", "depth", "heads", "feed_forward_dim", "mixers", "mixer_options", "causal", "forget", "rotary"),
    *("short_convolution", "position", "position_combine", "max_positions", "position_period", "embedding_dim"),
    *("scale_embeddings", "embedding_norm", "norm", "residual", "share_layers", "activation"),
)
_PARTS = ("embeddings", "head")


@strict
class LongspanConfig(PreTrainedConfig):
    """Shape of a longspan model: of its backbone, and, as `embeddings` and `head`, of the parts around it.

    The names that other models of transformers use for the backbone's settings work too (`attribute_map`).

    Raises:
        UserError: for values that do not fit together, settings of a part among those of the backbone, or two names of
            one setting with different values.
    """

    model_type = "longspan"
    # BERT's names, which most tools read, then GPT-2's and T5's.
    attribute_map: ClassVar[dict[str, str]] = {
        "hidden_size": "dim",
        "num_hidden_layers": "depth",
        "num_attention_heads": "heads",
        "intermediate_size": "feed_forward_dim",
        "max_position_embeddings": "max_positions",
        "embedding_size": "embedding_dim",
        "hidden_act": "activation",
        "hidden_dropout_prob": "dropout",
        "n_embd": "dim",
        "n_layer": "depth",
        "n_head": "heads",
        "n_inner": "feed_forward_dim",
        "n_positions": "max_positions",
        "d_model": "dim",
        "num_layers": "depth",
        "num_heads": "heads",
        "d_ff": "feed_forward_dim",
    }
    keys_to_ignore_at_inference: ClassVar[list[str]] = [
        "past_key_values",
        "cache",
        "losses",
        "user_vectors",
        "history_weights",
    ]

    embeddings: Any = option(
        None,
        "settings of the embeddings, such as `TokenSettings`, or a dictionary of them with their "
        '"kind"; None means plain embeddings of tokens',
        from_data=True,
    )
    head: Any = option(
        None,
        "settings of the head, likewise. A model class without settings of its own kind takes their defaults.",
        from_data=True,
    )
    vocab_size: int = option(16000, "number of token ids", Range(1), from_data=True)
    dim: int = option(256, "width of the model", Range(1))
    depth: int = option(2, "number of layers", Range(0, DEEPEST))
    heads: int = option(16, "number of heads of each mixer that has heads", Range(1))
    feed_forward_dim: int | None = option(
        None, "hidden width of the feed-forward networks; None means 4 * dim, 0 means none", Range(0)
    )
    mixers: list[str] | None = option(
        None,
        'names of the mixers, repeated over the depth, such as ["additive", "softmax"] for a hybrid; None means '
        '["additive"]',
    )
    mixer_options: dict[str, dict[str, Any]] | None = option(
        None, 'options per mixer, {"additive": {"sharing": "none"}}'
    )
    cross_mixers: list[str] | None = option(
        None,
        "names of mixers with cross attention (additive, bounded_memory, linear, messages, softmax), repeated over "
        "the depth. Through them each layer attends to another sequence, the context, after its own mixer; None or an "
        "empty list means none. `mixer_options` counts for them too.",
    )
    causal: bool = option(False, "whether positions see only themselves and earlier positions")
    forget: str = option(
        "none",
        'decay of each head of a causal mixer that has it: "none", "fixed", "learned" or "input" (see `longspan show '
        "additive`). Other mixers ignore it, but one of the model must have it.",
    )
    rotary: bool = option(
        False,
        "whether mixers that can (`softmax`, `local`, `linear`) rotate queries and keys by their position. Other "
        "mixers ignore it, but one of the model must have it.",
    )
    short_convolution: int = option(
        0,
        "width of a depthwise convolution before every mixer, such as 4: the position itself and those before it, or "
        "with causal=false those around it; 0 means none",
        Range(0, WIDEST),
    )
    position: str = option("sinusoidal", '"sinusoidal", "learned", "fourier" or "none"')
    position_combine: str = option("add", '"add" or "concat"')
    max_positions: int = option(
        4096, "largest number of tokens with learned positions; the scale of fourier positions", Range(1)
    )
    position_period: int | None = option(
        None,
        "number of tokens after which position numbers restart at 0, for endless streams; None means never",
        Range(1),
    )
    embedding_dim: int | None = option(
        None,
        "width of the embeddings if it is not that of the model (a linear map connects the two). None means dim, or "
        "dim / 2 if positions are concatenated, and with a `recommender` from a paper the paper's.",
        Range(1),
    )
    tie_word_embeddings: bool = option(True, "whether language models use the word vectors as output weights too")
    scale_embeddings: bool = option(False, "whether word vectors are multiplied by the square root of dim")
    embedding_norm: bool | None = option(
        None, 'whether the embeddings are normalised; None means only with norm="post", as in BERT'
    )
    norm: str = option("pre", '"pre", "post" or "none"')
    residual: bool = option(True, "whether blocks add their input to their output")
    share_layers: bool = option(False, "whether layers share their weights")
    activation: str = option("gelu", 'activation of the feed-forward networks, "gelu" or "relu"', ACTIVATIONS)
    feed_forward_dropout: bool = option(
        False, "whether the feed-forward networks also apply dropout after the activation"
    )
    dropout: float | int = option(
        0.1, "dropout of the embeddings, the mixers and the feed-forward networks", Range(0, 1)
    )
    token_dropout: float | int = option(
        0.0,
        "probability of zeroing a whole token in training, before positions are added. With word_characters, the "
        "token and the word as a whole are zeroed, but not the word's characters.",
        Range(0, 1),
    )
    use_cache: bool | None = option(
        None,
        "default of the argument `use_cache` of a causal model outside training: whether calls on whole sequences "
        "also return states. None means no, though `generate` uses states.",
    )
    initializer_range: float = option(0.02, "standard deviation of new weights", Range(0, below=math.inf))
    pad_token_id: int | None = option(
        0,
        "id of padding, whose embedding stays zero (unless it is also an output weight); None if every id is a token",
        from_data=True,
    )

    def __post_init__(self, **kwargs: Any) -> None:
        self._take_usual_names(kwargs)
        _refuse_settings_of_parts(kwargs)
        self.embeddings = settings.parsed("embeddings", self.embeddings or {"kind": "tokens"})
        self.head = None if self.head is None else settings.parsed("head", self.head)
        self.is_encoder_decoder = self.head is not None and self.head.encoder_decoder
        for part in self._parts():
            part.settle(self)
        self.mixers = ["additive"] if self.mixers is None else self.mixers
        self.mixer_options = {} if self.mixer_options is None else self.mixer_options
        if self.feed_forward_dim is None:
            self.feed_forward_dim = 4 * self.dim
        if self.embedding_dim is None:
            self.embedding_dim = self.dim // 2 if self.position_combine == "concat" else self.dim
        if self.embedding_norm is None:
            self.embedding_norm = self.norm == "post"
        check(self, largest=LARGEST)
        if self.pad_token_id is not None and not 0 <= self.pad_token_id < self.vocab_size:
            raise UserError(
                f"pad_token_id must be one of the {self.vocab_size} tokens, got {self.pad_token_id}; choose another or "
                "None."
            )
        super().__post_init__(**kwargs)
        for part in self._parts():
            part.check(self)

    def with_head(self, kind: type[HeadSettings] | None) -> "LongspanConfig":
        """Return this configuration, or, if it has a head of another kind, a copy with this kind and its defaults."""
        if kind is None or isinstance(self.head, kind):
            return self
        found = copy.deepcopy(self)
        found.head, found.is_encoder_decoder = kind(), kind.encoder_decoder
        found.head.settle(found)
        found.head.check(found)
        return found

    def setting(self, name: str) -> Any:
        """Return the setting of this name, whichever part has it; None if none has."""
        return next((getattr(part, name) for part in (self, *self._parts()) if hasattr(part, name)), None)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Do nothing: transformers would copy this file into folders; `modeling_longspan.py` imports it there."""

    def save_pretrained(self, save_directory: str | Path, *arguments: Any, **options: Any) -> None:
        """Save it to a folder; see transformers. From an export for the Hub, it takes `modeling_longspan.py` along."""
        if remote_code.is_named_in(getattr(self, "auto_map", None)):
            remote_code.write(Path(save_directory))
        super().save_pretrained(save_directory, *arguments, **options)

    def to_dict(self) -> dict[str, Any]:
        """Return it as JSON, the parts nested; see transformers."""
        values: dict[str, Any] = super().to_dict()
        return values | {part.part: part.to_dict() for part in self._parts()}

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return the configuration that `to_dict` described; see transformers.

        Further settings may be those of its embeddings and its head, too, each by its name or in a dictionary.
        """
        merged: dict[str, Any] = {}
        for part in _PARTS:
            known = config_dict.get(part)
            if not isinstance(known, Mapping):
                continue
            # What is wrong with the dictionary, the configuration says.
            names = options.names(settings.load(part, known["kind"])) if isinstance(known.get("kind"), str) else []
            given = {name: kwargs.pop(name) for name in names if name in kwargs}
            if isinstance(kwargs.get(part), Mapping):
                given |= kwargs.pop(part)
            merged |= {part: {**known, **given}} if given else {}
        return super().from_dict({**config_dict, **merged}, **kwargs)

    def _parts(self) -> list[PartSettings]:
        return [part for part in (self.embeddings, self.head) if part is not None]

    def _take_usual_names(self, given: dict[str, Any]) -> None:
        """Move what is given by the names of `attribute_map` to its own fields, before others are derived from them."""
        taken: dict[str, str] = {}
        for alias in [name for name in given if name in self.attribute_map]:
            name, value = self.attribute_map[alias], given.pop(alias)
            # A default cannot be told from the same value given.
            known = getattr(self, name)
            if value != known and (name in taken or known != getattr(type(self), name)):
                raise UserError(
                    f"expected one value of {name}, got {known!r} as {taken.get(name, name)} and {value!r} as "
                    f"{alias}; leave one of them out."
                )
            setattr(self, name, value)
            taken[name] = alias


def _refuse_settings_of_parts(given: Mapping[str, Any]) -> None:
    """Raise UserError for a setting of embeddings or a head among those of the backbone."""
    for name, value in given.items():
        if name in PreTrainedConfig.__dataclass_fields__:
            continue
        for part, kind in settings.homes(name):
            raise UserError(
                f"{name} is a setting of the {part} {kind!r}, got {name}={value!r} among those of the backbone; give "
                f"it with {part}={{'kind': {kind!r}, ...}}, or leave it out."
            )


document(LongspanConfig, LongspanConfig.__dataclass_fields__)
