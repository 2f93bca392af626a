"""Embeddings of hashed n-grams, which are added to those of the tokens that they end at."""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.machine.memory import memory_limit
from longspan.ops.slices import halo

#: Stands for a position without a token: padding, and what was before the first one.
NOTHING = -1
# Products of two numbers below a prime of 31 bits fit into 63, in PyTorch as in any runtime. The hashes of `wide` are
# others, and models are saved with either: those n-grams know their places in a table of any size, and neither end with
# documents in a row nor go on from a state.
_PRIME = (1 << 31) - 1
_FACTOR, _SPREAD = 1_103_515_245, 1_597_334_677


class HashedEmbedding(nn.Embedding):
    """Vectors for whatever has a hash; the first stands for nothing. They start at zero: the unseen adds nothing.

    Args:
        buckets: number of vectors.
        dim: their width.

    Raises:
        UserError: if the vectors do not fit into the memory of this machine; nothing has been allocated then.
    """

    def __init__(self, buckets: int, dim: int) -> None:
        _check_memory(buckets, dim)
        super().__init__(buckets, dim, padding_idx=0)

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)

    def summed(self, buckets: Int[Tensor, "*n k"]) -> Float[Tensor, "*n d"]:
        """Return the sum of the vectors of k buckets."""
        found: Tensor = nn.functional.embedding(buckets, self.weight, self.padding_idx, sparse=self.sparse).sum(-2)
        return found


class NgramEmbedding(HashedEmbedding):
    """Σ_n E[h(x_{t-n+1} ... x_t)] over the sizes n, for each position t.

    h is a polynomial of the token ids modulo the prime 2^31 - 1, and then modulo the number of buckets. N-grams in the
    same bucket share its vector. An n-gram that would reach beyond the first token of a document or over padding does
    not exist and adds nothing. Nor do n-grams that training lacks, as vectors start at zero.

    Source: Joulin et al. 2016, "Bag of Tricks for Efficient Text Classification", https://arxiv.org/abs/1607.01759

    Args:
        sizes: the numbers n of tokens.
        buckets: number of vectors, of which the first stands for n-grams that do not exist.
        dim: their width.

    Raises:
        UserError: from `HashedEmbedding`.
    """

    def __init__(self, sizes: Sequence[int], buckets: int, dim: int) -> None:
        self.sizes = tuple(sorted(sizes))
        super().__init__(buckets, dim)

    @property
    def before(self) -> int:
        """Number of tokens before a position that its n-grams reach."""
        return self.sizes[-1] - 1

    def first(self, batch_size: int, device: torch.device) -> Int[Tensor, "b w"]:
        """Return the ids before the first token: none."""
        return torch.full((batch_size, self.before), NOTHING, device=device)

    def forward(
        self,
        ids: Int[Tensor, "b n"],
        document_ids: Int[Tensor, "b n"] | None = None,
        before: Int[Tensor, "b w"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        """Return the sums for ids that are NOTHING at padding, after those in `before`, whose last ones count."""
        if before is None:
            # Beyond the ends there is 0.
            before = halo(ids - NOTHING, self.before, 0)[0] + NOTHING
        before = before[:, before.shape[1] - self.before :]
        return self.summed(self.buckets(torch.cat((before, ids), 1), document_ids))

    def buckets(
        self, seen: Int[Tensor, "b m"], document_ids: Int[Tensor, "b n"] | None = None
    ) -> Int[Tensor, "b n sizes"]:
        """Return the bucket of each n-gram that ends at each of the last n of the m ids; 0 if it does not exist."""
        n = seen.shape[1] - self.before
        last = seen[:, self.before :]
        key, whole, found = last + 1, last != NOTHING, []
        documents = None if document_ids is None else nn.functional.pad(document_ids, (self.before, 0))
        for back in range(1, self.before + 1):
            start = self.before - back
            earlier = seen[:, start : start + n]
            whole = whole & (earlier != NOTHING)
            if documents is not None and document_ids is not None:
                whole = whole & (documents[:, start : start + n] == document_ids)
            key = (key * _FACTOR + earlier + 1) % _PRIME
            if back + 1 in self.sizes:
                bucket = (key * _SPREAD + back) % _PRIME % (self.num_embeddings - 1) + 1
                found.append(bucket.masked_fill(~whole, 0))
        return torch.stack(found, 2)


def _check_memory(buckets: int, dim: int) -> None:
    needed, there = 4 * buckets * dim, memory_limit()
    if needed > there:
        raise UserError(
            f"expected a table of n-grams that fits into this machine's {there / 2**30:.3g} GiB of memory, got "
            f"ngram_buckets={buckets} of {dim} numbers, {needed / 2**30:.3g} GiB; choose fewer."
        )
