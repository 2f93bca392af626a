"""A linear-chain CRF over hand-made features of words, as a part of a model: `WideChain`."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.models.parts.words import Torch
from longspan.models.wide.base import ScaledPart
from longspan.models.wide.classifier import fold_of
from longspan.models.wide.word_features import kinds_of_characters, lower_cases
from longspan.ops.words import KNOWN, LETTERS, NOTHING, code_points, word_features

#: Number of folds: what the network reads of a training document is fitted without the documents of its own fold.
FOLDS = 3


class WideChain(ScaledPart):
    """A linear-chain CRF over the hand-made features of words (`longspan.models.wide.word_features`).

    Its scores are u[t, y] = Σ_f W[f(t), y], the sum over those features of word t that are known, and A[y, y'] of
    labels after each other. Features are found by their hashes of 64 bits, so that unknown ones say nothing. Words are
    what their tokens spell: a model needs nothing but tokens.

    `combined` adds its scores to those of the network, each times its own scale. Nothing here is learned by gradients:
    weights are fitted before the network is trained, scales to the validation split.

    Args:
        size: number of features.
        labels: number of labels.
        tokens: size of the vocabulary.

    Attributes:
        keys: (size,) the hashes of the features in increasing order.
        weight: (size, labels) W.
        transitions: (labels, labels) A, from the first label to the second.
        spelling: (tokens, LETTERS) uint8, the bytes of each token, 0 after the last.
        held_out: (FOLDS, size, labels) float16, the weights fitted without the documents of each fold; only in
            training.
    """

    keys: Tensor
    weight: Tensor
    transitions: Tensor
    spelling: Tensor
    lower: Tensor
    kinds: Tensor
    held_out: Tensor | None

    def __init__(self, size: int, labels: int, tokens: int) -> None:
        super().__init__()
        self.register_buffer("keys", torch.empty(max(1, size), dtype=torch.int64))
        shapes = {"weight": (max(1, size), labels), "transitions": (labels, labels)}
        for name, shape in shapes.items():
            self.register_buffer(name, torch.empty(shape))
        self.register_buffer("spelling", torch.empty(tokens, LETTERS, dtype=torch.uint8))
        # Saved, so that features do not depend on the version of Unicode that Python knows.
        self.register_buffer("lower", torch.empty(KNOWN, dtype=torch.int32))
        self.register_buffer("kinds", torch.empty(KNOWN, dtype=torch.uint8))
        self.register_buffer("held_out", None, persistent=False)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.keys, NOTHING)
        with torch.no_grad():
            self.lower.copy_(lower_cases())
            self.kinds.copy_(kinds_of_characters())

    def size(self) -> int:
        # The rest is of the tokens and of Unicode.
        return self.weight.numel() + self.transitions.numel()

    def resize(self, tokens: int) -> None:
        """Change the number of tokens; new ones are words without characters."""
        more = max(0, tokens - len(self.spelling))
        self.spelling = nn.functional.pad(self.spelling[:tokens], (0, 0, 0, more))

    def hashed(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None,
        first: Bool[Tensor, "b t"],
        by_row: Int[Tensor, " r"],
        feature_ids: Int[Tensor, "b t"] | None = None,
    ) -> Int[Tensor, "w f"]:
        """Return the hashes of the features of each word, row after row.

        Args:
            ids: the tokens.
            mask: which of them are real.
            first: the first token of each word.
            by_row: number of words of each sentence.
            feature_ids: the further feature of each token's word, above 0; None for none.
        """
        real = torch.ones_like(first) if mask is None else mask
        spelled = self.spelling[ids[real]]
        there = spelled > 0
        word = _numbers(first)[real].unsqueeze(1).expand_as(spelled)[there]
        codes, sizes = code_points(spelled[there], word, int(by_row.sum()), Torch)
        given = None if feature_ids is None else feature_ids[first]
        found: Tensor = word_features(codes, sizes, by_row, given, self.lower, self.kinds, Torch)
        return found

    def scores(self, hashes: Int[Tensor, "w f"], folds: Int[Tensor, " w"] | None = None) -> Float[Tensor, "w l"]:
        """Return u of words with these features in float32, whatever the weights are in.

        Args:
            hashes: from `hashed`.
            folds: the fold of each word, by whose weights in `held_out` it is scored; None for those of all documents.
        """
        places = torch.searchsorted(self.keys, hashes).clamp_max(len(self.keys) - 1)
        known = (self.keys[places] == hashes) & (hashes != NOTHING)
        if folds is None or self.held_out is None:
            found = nn.functional.embedding(places, self.weight)
        else:
            found = self.held_out[folds.unsqueeze(1), places]
        return (found.float() * known.unsqueeze(-1)).sum(1)

    @torch.no_grad()
    def forward(
        self,
        ids: Int[Tensor, "b t"],
        mask: Bool[Tensor, "b t"] | None,
        first: Bool[Tensor, "b t"],
        by_row: Int[Tensor, " r"],
        feature_ids: Int[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t l"]:
        """Return u of the word of each token, 0 at padding; see `hashed`.

        In training, a document is read with weights that do not know its fold, so that they are as unsure as on new
        documents.
        """
        folds = fold_of(ids, mask, FOLDS).unsqueeze(1).expand_as(first)[first] if self.training else None
        by_word = self.scores(self.hashed(ids, mask, first, by_row, feature_ids), folds)
        real = torch.ones_like(first) if mask is None else mask
        found = by_word.new_zeros(*ids.shape, by_word.shape[1])
        found[real] = by_word[_numbers(first)[real]]
        return found


def _numbers(first: Bool[Tensor, "b t"]) -> Int[Tensor, "b t"]:
    """Return the word of each token, numbered row after row."""
    return (first.flatten().cumsum(0) - 1).view(first.shape)
