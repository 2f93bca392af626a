"""A linear model over what two documents share: `PairPart`."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.models.wide.linear import LinearPart

#: Places in the table of tokens' rarity; of tokens with the same place, each counts as often as all of them.
BUCKETS = 2**15
#: Features of a pair.
_FEATURES = 9


class PairPart(LinearPart):
    """A linear model over how many tokens two documents share, how rare these are, and how long both are.

    The features are: the cosine of both documents' TF-IDF vectors, and that without idf; shared tokens as a share of
    the first document's, of the second's and of all different tokens; the logarithm of the sum of their idf; those of
    both lengths, and how far these are apart. Nothing depends on the order of tokens. Cost: that of sorting them.

    Args:
        classes: Number of classes.
    """

    idf: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__(_FEATURES, classes)
        #: `(BUCKETS,)` logarithms of the inverse share of training documents that have a token; 0 for unknown ones.
        self.register_buffer("idf", torch.ones(BUCKETS))

    def features(
        self,
        mask: Bool[Tensor, "b t"] | None,
        counts: Float[Tensor, "b t"] | None,
        input_ids: Int[Tensor, "b t"] | None = None,
        second_ids: Int[Tensor, "b s"] | None = None,
        second_mask: Tensor | None = None,
        second_counts: Float[Tensor, "b s"] | None = None,
        **streams: Tensor | None,
    ) -> Float[Tensor, "b f"]:
        assert input_ids is not None
        assert second_ids is not None
        second_mask = None if second_mask is None else second_mask.bool()
        ordered, order = torch.cat((input_ids, second_ids), 1).sort(1)
        # The different tokens of a pair have numbers of their own.
        number = (nn.functional.pad(ordered[:, 1:] != ordered[:, :-1], (1, 0))).long().cumsum(1)
        idf = self.idf.new_zeros(ordered.shape).scatter(1, number, self.idf[ordered % BUCKETS]).float()
        places = torch.empty_like(number).scatter(1, order, number)
        length, known = input_ids.shape[1], idf > 0
        both = (
            known * _bags(places[:, :length], number.shape[1], mask, counts),
            known * _bags(places[:, length:], number.shape[1], second_mask, second_counts),
        )
        # Counts in between, as explanations have, make a token present in part.
        first, second = (bag.clamp(0, 1) for bag in both)
        shared = first * second
        common, of_first, of_second = shared.sum(1), first.sum(1), second.sum(1)
        long, other = (bag.sum(1).log1p() for bag in both)
        found = (
            _cosine(*(bag.log1p() * idf for bag in both)),
            _cosine(*(bag.log1p() for bag in both)),
            common / of_first.clamp_min(1),
            common / of_second.clamp_min(1),
            common / (of_first + of_second - common).clamp_min(1),
            (shared * idf).sum(1).log1p(),
            long,
            other,
            (long - other).abs(),
        )
        return torch.stack(found, 1)


def _bags(places: Int[Tensor, "b t"], size: int, mask: Tensor | None, counts: Tensor | None) -> Float[Tensor, "b n"]:
    """Number of times each token occurs in each document; see `LinearPart.features`."""
    times = torch.ones(places.shape, device=places.device) if mask is None else mask.float()
    times = times if counts is None else times * counts.float()
    return times.new_zeros(len(places), size).scatter_add(1, places, times)


def _cosine(u: Float[Tensor, "b n"], v: Float[Tensor, "b n"]) -> Float[Tensor, " b"]:
    return (u * v).sum(1) / (u.square().sum(1) * v.square().sum(1)).clamp_min(1e-12).sqrt()
