"""Tokens as vectors: of each token, of n-grams, and of what words look like."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.models.embeddings.base import Embeddings
from longspan.models.parts.adaptive import AdaptiveEmbedding
from longspan.models.parts.ngrams import NOTHING, NgramEmbedding
from longspan.models.parts.words import WordCharacters
from longspan.models.settings import EmbeddingSettings
from longspan.options import Range, option

#: Tokens of the longest n-grams.
LONGEST_NGRAM = 16
#: From how many tokens on a vocabulary is split by `cutoffs="auto"`, and the number of the most frequent ones.
LARGE, FREQUENT = 8000, 2000


@strict
@dataclass
class TokenSettings(EmbeddingSettings):
    """Settings of embeddings of tokens."""

    ngrams: list[int] | None = option(
        None,
        "sizes of n-grams of tokens, such as [2, 3], whose hashed embeddings are added to that of the last token; "
        "None or an empty list means none",
    )
    ngram_buckets: int = option(1 << 16, "number of vectors for n-grams; those with the same hash share one", Range(2))
    word_characters: bool = option(
        False,
        "whether to add hashed features of a word to the embeddings of its tokens: its first and its last 1 to 5 "
        "characters, itself, and its shape. Not with causal=True, as a word's first token would show the others.",
    )
    word_neighbours: int = option(
        0,
        "number of words on either side whose hashes are added, too; those of the next words also as pairs with the "
        "word",
        Range(0),
    )
    feature_neighbours: int = option(
        0,
        "number of words on either side whose further feature (`features`) is hashed, too, alone and with those next "
        "to it",
        Range(0),
    )
    word_buckets: int = option(
        1 << 17, "number of vectors for these features; those with the same hash share one", Range(2)
    )
    cutoffs: list[int] | str | None = option(
        None,
        "first tokens of the clusters of rarer tokens, for adaptive embeddings and softmax; [] means a single "
        'cluster, None plain embeddings and softmax. "auto" means [2000] for vocabularies of at least 8,000 tokens, '
        "where a step of training takes about half the time, and None for smaller ones.",
    )
    div_val: int = option(
        1, "factor by which each cluster's word vectors are narrower than those of the previous cluster", Range(1)
    )

    def settle(self, config: Any) -> None:
        if self.cutoffs == "auto":
            self.cutoffs = [FREQUENT] if config.vocab_size >= LARGE else None

    def check(self, config: Any) -> None:
        self._check_words(config)
        self._check_ngrams()
        self._check_clusters(config)

    @property
    def clusters(self) -> list[int] | None:
        """The `cutoffs` of a configuration, where they are numbers."""
        assert not isinstance(self.cutoffs, str)
        return self.cutoffs

    def build(self, config: Any) -> "TokenEmbeddings":
        return TokenEmbeddings(config, self)

    def _check_words(self, config: Any) -> None:
        if self.word_characters and config.causal:
            raise UserError(
                "word_characters show a word's first token its later ones, got word_characters=True with causal=True; "
                "leave one of them out."
            )
        for name in ("word_neighbours", "feature_neighbours", "word_buckets"):
            if not self.word_characters and getattr(self, name) != getattr(type(self), name):
                raise UserError(
                    f"{name} needs characters of words, got {getattr(self, name)} with word_characters=False; set "
                    "model.word_characters=true or leave it out."
                )

    def _check_ngrams(self) -> None:
        if self.ngrams == []:
            # Of a recipe that has them, nothing else needs to be taken back.
            self.ngrams, self.ngram_buckets = None, type(self).ngram_buckets
        if self.ngrams is None:
            if self.ngram_buckets != type(self).ngram_buckets:
                raise UserError(
                    f"ngram_buckets needs sizes of n-grams, got {self.ngram_buckets} without ngrams; set model.ngrams "
                    "or leave it out."
                )
        elif len({*self.ngrams}) != len(self.ngrams) or not all(2 <= size <= LONGEST_NGRAM for size in self.ngrams):
            raise UserError(
                f"expected ngrams of different sizes from 2 to {LONGEST_NGRAM}, got {self.ngrams}; choose others, "
                "such as [2, 3]."
            )

    def _check_clusters(self, config: Any) -> None:
        if self.cutoffs is None:
            if self.div_val != 1:
                raise UserError(
                    f"div_val needs clusters of tokens, got {self.div_val} without cutoffs; set model.cutoffs or leave "
                    "it out."
                )
            return
        if isinstance(self.cutoffs, str):
            raise UserError(
                f"expected cutoffs to be numbers of tokens such as [2000], or auto, got {self.cutoffs!r}; change them."
            )
        bounds = [0, *self.cutoffs, config.vocab_size]
        if any(first >= end for first, end in itertools.pairwise(bounds)):
            raise UserError(
                f"expected increasing cutoffs between 0 and the vocabulary's {config.vocab_size} tokens, got "
                f"{self.cutoffs}; choose others, or leave them out."
            )
        if config.embedding_dim // self.div_val ** len(self.cutoffs) < 1:
            raise UserError(
                f"expected at least one number per word vector, got none for the last cluster: embedding_dim="
                f"{config.embedding_dim} is divided by div_val={self.div_val} {len(self.cutoffs)} times; choose a "
                "smaller div_val or fewer cutoffs."
            )


class TokenEmbeddings(Embeddings):
    """The vectors of tokens, `table`, plus those of `ngrams` and of `words`, where the settings ask for them.

    It reads `input_ids` (b, t) and, for `feature_neighbours`, `feature_ids` (b, t). Exported programs give `word_rows`
    (b, t, f) in place of characters of words: `WordCharacters.rows`.

    Raises:
        UserError: `inputs_embeds` with n-grams or characters of words, which are made of ids.
    """

    streams = ("input_ids", "feature_ids", "word_rows")

    def __init__(self, config: Any, settings: TokenSettings) -> None:
        super().__init__()
        self.token_dropout = float(config.token_dropout)
        self.table: nn.Module
        if settings.clusters is None:
            self.output_dim = config.embedding_dim
            self.table = nn.Embedding(config.vocab_size, self.output_dim, padding_idx=config.pad_token_id)
        else:
            self.output_dim = config.dim
            self.table = AdaptiveEmbedding(
                config.vocab_size,
                self.output_dim,
                cutoffs=settings.clusters,
                embedding_dim=config.embedding_dim,
                div_val=settings.div_val,
                padding_idx=config.pad_token_id,
            )
        self.ngrams: NgramEmbedding | None = None
        if settings.ngrams is not None:
            self.ngrams = NgramEmbedding(settings.ngrams, settings.ngram_buckets, self.output_dim)
        self.words: WordCharacters | None = None
        if settings.word_characters:
            self.words = WordCharacters(
                config.vocab_size,
                self.output_dim,
                buckets=settings.word_buckets,
                neighbours=settings.word_neighbours,
                feature_neighbours=settings.feature_neighbours,
                dropout=config.token_dropout,
            )

    @property
    def drops_tokens(self) -> bool:
        return self.words is not None

    @property
    def takes_slices(self) -> bool:
        return self.words is None

    def forward(
        self,
        streams: Mapping[str, Tensor | None],
        *,
        vectors: Tensor | None = None,
        mask: Tensor | None = None,
        document_ids: Tensor | None = None,
        before: Tensor | None = None,
    ) -> Tensor:
        ids = streams.get("input_ids")
        embedded = self.position_vectors(ids, vectors)
        if self.ngrams is not None:
            embedded = embedded + self.ngrams(_real(required_ids(ids, "ngrams"), mask), document_ids, before)
        if self.words is not None:
            if self.training and self.token_dropout:
                # Its characters still tell what a word without a token is.
                embedded = without_tokens(embedded, self.token_dropout)
            rows = streams.get("word_rows")
            if rows is None:
                looks = self.words(required_ids(ids, "word_characters"), mask, streams.get("feature_ids"))
            else:
                looks = self.words.table.summed(rows)
            embedded = embedded + looks.to(embedded.dtype)
        return embedded

    def position_vectors(self, stream: Tensor | None, vectors: Tensor | None = None) -> Tensor:
        embedded: Tensor = self.table(stream) if vectors is None else vectors
        return embedded

    def first(self, batch_size: int, device: torch.device) -> Tensor | None:
        return None if self.ngrams is None else self.ngrams.first(batch_size, device)

    def remembered(self, streams: Mapping[str, Tensor | None], mask: Tensor | None) -> Tensor | None:
        return None if self.ngrams is None else _real(required_ids(streams.get("input_ids"), "ngrams"), mask)

    def get_input_embeddings(self) -> nn.Module:
        return self.table

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.table = value


def token_settings(config: Any, who: str) -> TokenSettings:
    """Return the settings of a model's tokens. Raises UserError, saying `who` needs them, if it embeds another way."""
    settings = config.embeddings
    if not isinstance(settings, TokenSettings):
        read = f", which reads them with {settings.pretrained!r}" if settings.pretrained else ""
        raise UserError(
            f"{who} expected embeddings of tokens of its own, got a model with embeddings {settings.kind()!r}{read}; "
            "build one with embeddings of tokens."
        )
    return settings


def without_tokens(embedded: Tensor, dropout: float) -> Tensor:
    """Return vectors (b, t, d) of which whole positions are replaced by zeros with a probability of `dropout`."""
    kept = torch.rand(embedded.shape[:2], device=embedded.device) >= dropout
    return embedded * kept.unsqueeze(-1)


def _real(ids: Tensor, mask: Tensor | None) -> Tensor:
    """Return the ids that n-grams are made of."""
    return ids if mask is None else ids.masked_fill(~mask, NOTHING)


def required_ids(input_ids: Tensor | None, option: str) -> Tensor:
    """Return the ids that an option of the configuration reads."""
    if input_ids is None:
        raise UserError(
            f"expected input_ids, as this model has {option} of them, got inputs_embeds; give ids, or build the model "
            f"without {option}."
        )
    return input_ids
