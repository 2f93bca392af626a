"""Checks of the parts of a `LongspanConfig`: settings that do not fit each other raise UserError."""

import itertools
import math
from typing import Any

from longspan.errors import UserError, check_choice
from longspan.models.positions import NAMES as POSITIONS

RECOMMENDATION_LOSSES = ("softmax", "binary", "pairwise")

#: Tokens of the longest n-grams.
LONGEST_NGRAM = 16

#: The smallest value of each size.
_SIZES = {
    "dim": 1,
    "depth": 0,
    "part_depth": 0,
    "heads": 1,
    "vocab_size": 1,
    "max_positions": 1,
    "div_val": 1,
    "feed_forward_dim": 0,
    "embedding_dim": 1,
    "position_period": 1,
    "short_convolution": 0,
    "ngram_buckets": 2,
    "word_neighbours": 0,
    "feature_neighbours": 0,
    "word_buckets": 2,
    "wide_buckets": 1,
    "encoder_window": 1,
    "encoder_overlap": 0,
    "longest_answer": 1,
    "features": 0,
    "user_depth": 0,
    "users": 0,
    "categories": 0,
    "subcategories": 0,
    "entities": 0,
    "entity_dim": 0,
}
_LARGEST = 2**31 - 1
#: Ten times as deep as the deepest models; more layers take minutes to build, even without weights.
_DEEPEST = 10_000
#: The largest value of each size that has a limit of its own: a convolution of more positions is not short.
_MOST = {"depth": _DEEPEST, "part_depth": _DEEPEST, "user_depth": _DEEPEST, "short_convolution": 128}
#: What there is not beside a pretrained encoder, and why.
_WITHOUT_ENCODER = {
    "causal": "it sees what follows a token, too",
    "ngrams": "its outputs know the neighbours of each token",
    "word_characters": "its outputs take the place of word vectors",
    "cutoffs": "its outputs take the place of word vectors",
    "scale_embeddings": "its outputs take the place of word vectors",
}


def check_ngrams(config: Any) -> None:
    """Check the sizes of n-grams; an empty list is None."""
    if config.ngrams == []:
        # Of a recipe that has them, nothing else needs to be taken back.
        config.ngrams, config.ngram_buckets = None, type(config).ngram_buckets
    if config.ngrams is None:
        if config.ngram_buckets != type(config).ngram_buckets:
            raise UserError(
                f"ngram_buckets needs sizes of n-grams, got {config.ngram_buckets} without ngrams; set model.ngrams "
                "or leave it out."
            )
    elif len({*config.ngrams}) != len(config.ngrams) or not all(2 <= size <= LONGEST_NGRAM for size in config.ngrams):
        raise UserError(
            f"expected ngrams of different sizes from 2 to {LONGEST_NGRAM}, got {config.ngrams}; choose others, "
            "such as [2, 3]."
        )


def check_words(config: Any) -> None:
    """Check the options of characters of words."""
    if config.word_characters and config.causal:
        raise UserError(
            "word_characters show a word's first token the others, got word_characters=True with causal=True; "
            "leave one of them out."
        )
    for name in ("word_neighbours", "feature_neighbours", "word_buckets"):
        if not config.word_characters and getattr(config, name) != getattr(type(config), name):
            raise UserError(
                f"{name} needs characters of words, got {getattr(config, name)} with word_characters=False; set "
                "model.word_characters=true or leave it out."
            )


def check_clusters(config: Any) -> None:
    """Check the options of clusters of tokens, and set which projections are tied."""
    if config.cutoffs is None:
        for name, unset in (("div_val", 1), ("tie_projections", None)):
            if getattr(config, name) != unset:
                raise UserError(
                    f"{name} needs clusters of tokens, got {getattr(config, name)} without cutoffs; set "
                    "model.cutoffs or leave it out."
                )
        return
    bounds = [0, *config.cutoffs, config.vocab_size]
    if any(first >= end for first, end in itertools.pairwise(bounds)):
        raise UserError(
            f"expected increasing cutoffs between 0 and the vocabulary's {config.vocab_size} tokens, got "
            f"{config.cutoffs}; choose others, or leave them out."
        )
    assert config.embedding_dim is not None
    narrowest = config.embedding_dim // config.div_val ** len(config.cutoffs)
    if narrowest < 1:
        raise UserError(
            f"expected at least one number per word vector, got none for the last cluster: embedding_dim="
            f"{config.embedding_dim} is divided by div_val={config.div_val} {len(config.cutoffs)} times; choose a "
            "smaller div_val or fewer cutoffs."
        )
    if config.tie_projections is None:
        config.tie_projections = [False] + [True] * len(config.cutoffs)
    if len(config.tie_projections) != len(config.cutoffs) + 1:
        raise UserError(
            f"expected one tie_projections for each of {len(config.cutoffs) + 1} clusters, got "
            f"{len(config.tie_projections)}; give one more than cutoffs."
        )


def check_values(config: Any) -> None:
    """Check sizes, whose upper limit is larger than any tensor, and probabilities."""
    for name, least in _SIZES.items():
        value = getattr(config, name)
        if value is not None and value < least:
            raise UserError(f"{name} must be at least {least}, got {value}; choose a larger one.")
        most = _MOST.get(name, _LARGEST)
        if value is not None and value > most:
            raise UserError(f"{name} must be at most {most}, got {value}; choose a smaller one.")
    for name in ("dropout", "token_dropout", "classifier_dropout", "label_smoothing"):
        value = getattr(config, name)
        # This also refuses NaN.
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"{name} must be from 0 to 1, got {value}; choose another.")
    if not 0 <= config.initializer_range < math.inf:
        raise UserError(f"initializer_range must be at least 0, got {config.initializer_range}; choose another.")
    if config.pad_token_id is not None and not 0 <= config.pad_token_id < config.vocab_size:
        raise UserError(
            f"pad_token_id must be one of the {config.vocab_size} tokens, got {config.pad_token_id}; choose another or "
            "None."
        )


def check_targets(config: Any) -> None:
    """Check what the data decide about the loss and the meaning of outputs."""
    for name, most in (("class_weights", math.inf), ("thresholds", 1)):
        values = getattr(config, name)
        if values is None:
            continue
        if len(values) != config.num_labels:
            raise UserError(
                f"{name} must have a number for each of {config.num_labels} labels, got {len(values)}; give one for "
                "each, or None."
            )
        # This also refuses NaN.
        if not all(0 <= value <= most and value < math.inf for value in values):
            limits = "at least 0 and finite" if most > 1 else "from 0 to 1"
            raise UserError(f"{name} must be {limits}, got {values}; choose others.")
    if config.answer_threshold is not None and not math.isfinite(config.answer_threshold):
        raise UserError(f"answer_threshold must be finite or None, got {config.answer_threshold}; choose another.")
    if not (math.isfinite(config.target_mean) and 0 < config.target_scale < math.inf):
        raise UserError(
            f"target_mean must be finite and target_scale positive, got {config.target_mean} and "
            f"{config.target_scale}; choose others."
        )
    if (config.target_mean, config.target_scale) != (0, 1) and config.problem_type != "regression":
        raise UserError(
            f"target_mean and target_scale are for regression, got problem_type={config.problem_type!r}; leave them "
            "out."
        )


def check_encoder(config: Any) -> None:
    """Check that what belongs to a pretrained encoder is there with one alone."""
    # A recipe cannot say None.
    config.encoder = config.encoder or None
    if config.encoder is None:
        for name in ("encoder_window", "encoder_overlap", "train_encoder", "encoder_config", "encoder_special_ids"):
            if getattr(config, name) != getattr(type(config), name):
                raise UserError(
                    f"{name} needs a pretrained encoder, got {getattr(config, name)} without one; set model.encoder "
                    "or leave it out."
                )
        return
    for name, why in _WITHOUT_ENCODER.items():
        value = getattr(config, name)
        if value:
            raise UserError(
                f"expected model.{name} only without a pretrained encoder, as {why}, got {name}={value} with "
                f"encoder={config.encoder!r}; leave one of them out."
            )


def check_recommendation(config: Any) -> None:
    """Check what models that recommend read of it; their options are checked where they are built."""
    config.recommender_options = config.recommender_options or {}
    config.user_mixers = config.user_mixers or None
    check_choice("recommendation_loss", config.recommendation_loss, RECOMMENDATION_LOSSES)
    check_choice("user_position", config.user_position, POSITIONS)
    if config.user_causal and config.user_position != "none":
        raise UserError(
            "user_position counts back from the newest click, which each click changes, got "
            f"{config.user_position!r} with user_causal=True; leave one of them out."
        )
    if bool(config.entities) != bool(config.entity_dim):
        raise UserError(
            f"expected entities and the width of their vectors, got entities={config.entities} with "
            f"entity_dim={config.entity_dim}; set both or neither."
        )


def check_attentions(config: Any, wanted: bool | None) -> None:
    """Check that nobody asks for attention maps, in a call or in the configuration."""
    if wanted or (wanted is None and config.output_attentions):
        raise UserError("expected output_attentions=False, as mixers return no attention maps, got True; leave it out.")
