"""A linear model over the n-grams that a document has: `Wide`."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

_PRIME = 2**31 - 1
#: Odd factors below the prime, one for each place in an n-gram; the hash is linear in the tokens modulo the prime.
_FACTORS = (1_640_531_527, 1_225_269_487, 2_024_692_717)
LONGEST = len(_FACTORS)


def ngram_hashes(
    ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None
) -> tuple[Int[Tensor, "b g"], Bool[Tensor, "b g"]]:
    """Return the different n-grams of 1 to `LONGEST` tokens in each row, hashed to numbers below 2^31 - 1.

    Args:
        ids: Token ids.
        mask: True at real tokens; an n-gram is made of real tokens only, so padding changes nothing.

    Returns:
        The hashes in increasing order, g = LONGEST * t, and which of them count: of equal ones the first, and none of
        n-grams that do not exist, whose hash is 2^31 - 1.
    """
    length = ids.shape[1]
    real = torch.ones_like(ids, dtype=torch.bool) if mask is None else mask
    hashed, exists = torch.zeros_like(ids), real
    found = []
    for place, factor in enumerate(_FACTORS):
        # Shifted, the token `place` before each position; the id itself is below the prime.
        before = nn.functional.pad(ids, (place, 0))[:, :length]
        exists = exists & nn.functional.pad(real, (place, 0))[:, :length]
        hashed = (hashed + (before + 1) * factor) % _PRIME
        found.append(torch.where(exists, hashed, _PRIME))
    ordered = torch.cat(found, 1).sort(1).values
    repeated = nn.functional.pad(ordered[:, 1:] == ordered[:, :-1], (1, 0))
    return ordered, (ordered < _PRIME) & ~repeated


class Wide(nn.Module):
    """A linear model over the different n-grams of 1 to 3 tokens that a document has.

    logits = Σ_g W[g] + b, the sum over those of the document's n-grams that have weights (Wang and Manning 2012 count
    presence likewise). The weights are in a hash table with a place for each n-gram's hash modulo its size, which
    belongs to one n-gram only: what else is hashed there has no weight, so that unseen n-grams say nothing. `combined`
    adds the logits to those of the deep part, each times its own scale. Nothing here is learned by gradients: weights
    are fitted before the deep part is trained, scales to the validation split.

    Args:
        buckets: Places in the table.
        classes: Number of classes.
    """

    keys: Tensor
    weight: Tensor
    bias: Tensor
    scales: Tensor

    def __init__(self, buckets: int, classes: int) -> None:
        super().__init__()
        self.buckets = buckets
        # Not parameters, which transformers would have optimizers change once they come from a file.
        self.register_buffer("keys", torch.empty(buckets, dtype=torch.int32))
        for name, shape in (("weight", (buckets, classes)), ("bias", (classes,)), ("scales", (2,))):
            self.register_buffer(name, torch.empty(shape))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Forget everything: the logits are those of the deep part."""
        for tensor, value in ((self.keys, -1), (self.weight, 0), (self.bias, 0), (self.scales, 1)):
            nn.init.constant_(tensor, value)

    def places(
        self, ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None = None
    ) -> tuple[Int[Tensor, "b g"], Bool[Tensor, "b g"]]:
        """Return the places in the table of each row's n-grams, and which of them count."""
        hashes, counts = ngram_hashes(ids, mask)
        places = hashes % self.buckets
        return places, counts & (self.keys[places] == hashes)

    def forward(self, ids: Int[Tensor, "b t"], mask: Bool[Tensor, "b t"] | None = None) -> Float[Tensor, "b c"]:
        """Return the logits in float32, whatever the weights are in: sums of hundreds of numbers."""
        places, counts = self.places(ids, mask)
        found = nn.functional.embedding(places, self.weight).float()
        return (found * counts.unsqueeze(-1)).sum(1) + self.bias.float()

    def combined(self, wide: Float[Tensor, "b c"], deep: Float[Tensor, "b c"]) -> Float[Tensor, "b c"]:
        """Return the logits of both parts."""
        own, other = self.scales.float().unbind()
        return own * wide + other * deep.float()
