"""A score of candidates from counts of words and clicks: `Ranker`."""

from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.models.wide.base import ScaledPart
from longspan.models.wide.classifier import tfidf
from longspan.ops.pooling import accumulation_dtype

#: Features of a candidate, in the order of `Ranker.weights`.
FEATURES = ("match", "words", "clicks", "age")
#: Resolution of times, as a share of the unit.
_FINE = 1000
#: A time that is not known.
NEVER = -(2**62)
#: Maximum number of values in the profiles of users at once.
_ROOM = 1 << 24
_TINY = 1e-12


class Titles(NamedTuple):
    """Counts of the words of n titles.

    Attributes:
        words: `(n, t)` the words of each, each counted once, in increasing order; where `amounts` are 0, nothing.
        amounts: `(n, t)` their TF-IDF vectors, of length 1, or 0 for a title without known words.
        odds: `(n,)` the mean log-odds of their different words.
    """

    words: Int[Tensor, "n t"]
    amounts: Float[Tensor, "n t"]
    odds: Float[Tensor, " n"]


class Ranker(ScaledPart):
    """A score of each candidate for each user, a weighted sum of what is counted in training.

    Equations (x is the TF-IDF vector of a title, of length 1, and h are the titles that the user clicked before):
        match = x · Σ_h x_h / |Σ_h x_h|
        words = the mean, over the different words of the title, of the log-odds that what has the word is clicked
        clicks = the log-odds that the item itself is clicked, 0 for one that training does not know
        age = ln(1 + time since training first showed the item, in units), 0 for one that training does not know
        score = Σ weights · these

    Log-odds are those by which a click is likelier than for the mean of all that was shown. They are smoothed, so that
    what was shown rarely is near 0. Words that were in no title of training say nothing. The profile Σ_h x_h is a sum
    over clicks: with time and memory that are linear in them, and click by click by adding up `profiles`.

    `combined` adds the network's scores, each part times its own scale. Nothing here is learned by gradients: all of it
    is fitted to the training clicks before the network is trained, scales to the validation split.

    Args:
        vocab_size: Number of token ids.
        items: Number of items that training knows; 0 is an unknown one.
        origin: The time that is 0 here.
        unit: How long a unit of time is; 0 where times are not known.
    """

    token_words: Tensor
    idf: Tensor
    word_odds: Tensor
    item_odds: Tensor
    first: Tensor
    weights: Tensor

    def __init__(self, vocab_size: int, items: int, origin: float = 0.0, unit: float = 0.0) -> None:
        super().__init__()
        self.origin, self.unit = origin, unit
        #: `(v,)` the word that each token is: the same for one in capitals.
        self.register_buffer("token_words", torch.empty(vocab_size, dtype=torch.int64))
        #: `(items + 1,)` when an item was first shown, in `ticks`.
        self.register_buffer("first", torch.empty(items + 1, dtype=torch.int64))
        #: By word, 0 for those that say nothing.
        for name in ("idf", "word_odds"):
            self.register_buffer(name, torch.empty(vocab_size))
        self.register_buffer("item_odds", torch.empty(items + 1))
        self.register_buffer("weights", torch.empty(len(FEATURES)))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        super().reset_parameters()
        nn.init.constant_(self.first, NEVER)

    def ticks(self, times: np.ndarray) -> Int[Tensor, " n"]:
        """Return times as whole numbers, which no data type of a model makes inexact; NaN as `NEVER`.

        Args:
            times: Seconds, or what the training data have, `(n,)`.
        """
        known = np.isfinite(times) & bool(self.unit)
        units = (np.where(known, times, self.origin) - self.origin) / (self.unit or 1.0)
        ticks = np.rint(np.clip(units, -1e12, 1e12) * _FINE).astype(np.int64)
        return torch.from_numpy(np.where(known, ticks, NEVER))

    def titles(self, input_ids: Int[Tensor, "n t"], mask: Tensor | None = None) -> Titles:
        """Counts of the words of titles, whose tokens are real where `mask` is not 0."""
        words, nothing = self.token_words[input_ids], len(self.idf)
        known = self.idf[words] > 0
        known = known if mask is None else known & mask.bool()
        ordered = words.masked_fill(~known, nothing).sort(1).values
        first = ~nn.functional.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0)) if ordered.shape[1] else ordered.bool()
        number = first.long().cumsum(1) - 1
        times = torch.zeros_like(ordered).scatter_add(1, number, torch.ones_like(ordered)).gather(1, number)
        different = first & (ordered < nothing)
        ordered = ordered.masked_fill(~different, 0)
        amounts = tfidf(times * different, _exact(self.idf[ordered]))
        odds = (_exact(self.word_odds[ordered]) * different).sum(1) / different.sum(1).clamp_min(1)
        return Titles(ordered, amounts, odds)

    def profiles(self, titles: Titles, history: Int[Tensor, "b h"], mask: Bool[Tensor, "b h"]) -> Float[Tensor, "b v"]:
        """Return the sums of the vectors of the titles that users clicked; those of more clicks may be added."""
        words = titles.words[history].flatten(1)
        amounts = (titles.amounts[history] * mask.unsqueeze(-1)).flatten(1)
        return amounts.new_zeros(len(history), len(self.idf)).scatter_add(1, words, amounts)

    def features(
        self,
        titles: Titles,
        item_ids: Int[Tensor, " n"] | None,
        history: Int[Tensor, "b h"],
        history_mask: Bool[Tensor, "b h"],
        candidates: Int[Tensor, "b c"],
        candidate_mask: Bool[Tensor, "b c"],
        times: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b c f"]:
        """Return the `FEATURES` of candidates, in at least float32, 0 at padding.

        Args:
            titles: Those of all items that are named.
            item_ids: The numbers of these items; None where all are unknown.
            history: Which of the titles users clicked before.
            history_mask: True at real ones.
            candidates: Which of the titles are to be scored.
            candidate_mask: True at real ones.
            times: When, in `ticks`; None for not known.
        """
        history, candidates = history.masked_fill(~history_mask, 0), candidates.masked_fill(~candidate_mask, 0)
        together = max(1, _ROOM // len(self.idf))
        found = [titles.amounts.new_zeros(0, candidates.shape[1])]
        for begin in range(0, len(history), together):
            some = slice(begin, begin + together)
            profile = self.profiles(titles, history[some], history_mask[some])
            words, amounts = titles.words[candidates[some]], titles.amounts[candidates[some]]
            products = profile.gather(1, words.flatten(1)).view(words.shape) * amounts
            found.append(products.sum(-1) / profile.norm(dim=1, keepdim=True).clamp_min(_TINY))
        items = torch.zeros_like(candidates) if item_ids is None else item_ids[candidates]
        now = candidates.new_full((len(candidates),), NEVER) if times is None else times
        odds = titles.odds[candidates], _exact(self.item_odds[items])
        every = torch.stack((torch.cat(found), *odds, self._ages(items, now).to(odds[0].dtype)), -1)
        return every.masked_fill(~candidate_mask.unsqueeze(-1), 0)

    def forward(
        self,
        titles: Titles,
        item_ids: Int[Tensor, " n"] | None,
        history: Int[Tensor, "b h"],
        history_mask: Bool[Tensor, "b h"],
        candidates: Int[Tensor, "b c"],
        candidate_mask: Bool[Tensor, "b c"],
        times: Int[Tensor, " b"] | None = None,
    ) -> Float[Tensor, "b c"]:
        """Return the score of each candidate, in at least float32; see `features`."""
        found = self.features(titles, item_ids, history, history_mask, candidates, candidate_mask, times)
        return found @ _exact(self.weights)

    def of_all(
        self, profiles: Float[Tensor, "b v"], titles: Titles, item_ids: Int[Tensor, " n"], times: Int[Tensor, " b"]
    ) -> Float[Tensor, "b n"]:
        """Return the scores of all items for each user, given what `profiles` returned: those of `forward`."""
        table = nn.functional.normalize(profiles, dim=1, eps=_TINY).T
        match = nn.functional.embedding_bag(titles.words, table, per_sample_weights=titles.amounts, mode="sum").T
        own, words, clicks, age = _exact(self.weights).unbind()
        each = words * titles.odds + clicks * _exact(self.item_odds[item_ids])
        return own * match + each + age * self._ages(item_ids.expand(len(times), -1), times)

    def _ages(self, item_ids: Int[Tensor, "b c"], times: Int[Tensor, " b"]) -> Float[Tensor, "b c"]:
        first, now = self.first[item_ids], times.unsqueeze(1)
        known = (first != NEVER) & (now != NEVER)
        return ((now - first).clamp_min(0) * known / _FINE).log1p()


def _exact(tensor: Tensor) -> Tensor:
    return tensor.to(accumulation_dtype(tensor.dtype))
