"""The decoder of an encoder-decoder model: a causal model that attends to what the encoder read."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from longspan import mixers
from longspan.errors import UserError
from longspan.models.backbone import known_to
from longspan.models.config import LongspanConfig
from longspan.models.embeddings.tokens import TokenSettings

CROSS_ATTENTION = ("softmax",)


def decoder_config(config: LongspanConfig) -> LongspanConfig:
    """Return the configuration of the decoder of a model with the head settings `Seq2SeqSettings`.

    Raises:
        UserError: its mixers cannot be a decoder's, or its options belong to none of them.
    """
    head = config.head
    assert config.mixers is not None
    own = list(head.decoder_mixers or config.mixers)
    crossed = list(head.cross_attention or CROSS_ATTENTION)
    _check_decoders(own, inherited=not head.decoder_mixers)
    _check_cross(crossed)
    if head.decoder_forget != "none" and not any("forget" in mixers.options(name) for name in own):
        raise UserError(
            f"expected a decoder mixer that can forget with decoder_forget={head.decoder_forget!r}, got "
            f"{', '.join(own)}; leave model.decoder_forget out, or choose another in model.decoder_mixers, such as "
            "additive."
        )
    part = copy.deepcopy(config)
    part.head, part.is_encoder_decoder, part.causal = None, False, True
    part.mixers, part.cross_mixers = own, crossed
    part.mixer_options = _options(config.mixer_options or {}, head.decoder_mixer_options, [*own, *crossed])
    part.depth = config.depth if head.decoder_depth is None else head.decoder_depth
    part.forget = head.decoder_forget
    part.rotary = known_to(own, {"rotary": config.rotary}).get("rotary", False)
    if head.decoder_short_convolution is not None:
        part.short_convolution = head.decoder_short_convolution
    part.vocab_size = target_size(config)
    read, part.embeddings = config.embeddings, TokenSettings()
    if isinstance(read, TokenSettings):
        part.embeddings = TokenSettings(ngrams=read.ngrams, ngram_buckets=read.ngram_buckets)
    return part


def target_size(config: LongspanConfig) -> int:
    """Return the number of tokens of the target."""
    return config.vocab_size if config.head.shared_vocabulary else int(config.head.target_vocab_size)


def _options(
    inherited: Mapping[str, Mapping[str, Any]], given: Mapping[str, Mapping[str, Any]] | None, names: Sequence[str]
) -> dict[str, dict[str, Any]]:
    if given is None:
        return {name: dict(options) for name, options in inherited.items() if name in names}
    for name in given:
        if name not in names:
            raise UserError(
                f"decoder_mixer_options names {name!r}, which is not among the decoder's mixers "
                f"{', '.join(dict.fromkeys(names))}; leave it out."
            )
    return {name: dict(options) for name, options in given.items()}


def _check_decoders(names: Sequence[str], *, inherited: bool) -> None:
    for name in names:
        able = mixers.load(name).capabilities
        if not (able.causal and able.streaming):
            whose = "mixers, which are the decoder's as decoder_mixers is not set" if inherited else "decoder_mixers"
            raise UserError(
                f"expected mixers with a causal form that continues from a state for the decoder, got {name!r} in "
                f"{whose}; set model.decoder_mixers, such as ['softmax'] or ['linear']."
            )


def _check_cross(names: Sequence[str]) -> None:
    for name in names:
        able = mixers.load(name).capabilities
        if not (able.causal and able.context):
            fit = [each for each in mixers.names() if mixers.load(each).capabilities.context]
            raise UserError(
                f"expected mixers with cross attention in model.cross_attention, got {name!r}; choose among "
                f"{', '.join(fit)}."
            )
