"""Checks of the parts of a `LongspanConfig`: settings that do not fit each other raise UserError."""

import itertools
from typing import Any

from longspan.errors import UserError

#: Tokens of the longest n-grams.
LONGEST_NGRAM = 16


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
    for name in ("word_neighbours", "word_buckets"):
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
