"""Attention among positions with similar queries, found by hashing (Reformer)."""

import torch
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.mixers.base import Capabilities
from longspan.mixers.looks import Pairwise
from longspan.ops.affine import weight_and_bias
from longspan.ops.heads import head_width, split_heads
from longspan.ops.lsh import hash_buckets, hash_buckets_naive, lsh_attention, lsh_attention_naive
from longspan.ops.pooling import accumulation_dtype


class Reformer(Pairwise):
    """Reformer: softmax attention within chunks of positions that are sorted by a hash of their queries.

    Equations (per head, of width e = dim / heads; one projection gives queries and keys):
        q_t = W_qk x_t, k_t = q_t / |q_t|, v_t = W_v x_t
        bucket of t in round r = argmax [q_t R_r; -q_t R_r], R_r: e x buckets/2, drawn from N(0, 1) by `seed`
        P_rt = positions in t's chunk and the chunk before it, after sorting by bucket and cutting into chunks
        z_rt = log Σ_{j in P_rt, j ≠ t} exp(q_t·k_j),  o_rt = Σ_{j in P_rt, j ≠ t} exp(q_t·k_j - z_rt) v_j
        y_t = W_o concat_h( Σ_r softmax_r(z_rt) o_rt ); rounds in which t sees nothing else do not count, and where none
        is left o_t = v_t

    Cost: t·dim·(3·dim + hashes·(buckets/2 + 4·chunk)) time, hashes·t·(dim + 2·chunk·heads) memory
    Source: Kitaev et al. 2020, "Reformer: The Efficient Transformer", https://arxiv.org/abs/2001.04451
    Deviations: as in Hugging Face transformers, a position sees all of both chunks, whatever their buckets. The first
        chunk of a round sees the last of the round before. Positions seen in several rounds are not discounted.
        Rotations are drawn once and kept with the weights, so that outputs repeat. The number of buckets is fixed (the
        paper: about 2·t / chunk), so that padding cannot change it. Masked positions are in no chunk, so those between
        tokens have no effect. Buckets are computed in at least float32; where a query lies between two of them,
        rounding decides. Keys have length one exactly (transformers adds 10⁻⁶ to their mean square). A row without real
        positions gives zeros.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        hashes: rounds of hashing; more find more of the similar positions.
        buckets: number of buckets of a round; even.
        chunk: positions per chunk; a row no longer than one chunk is attended to as a whole.
        seed: seed of the random directions.
        bias: whether the three projections have biases.

    Raises:
        UserError: when `heads` does not divide `dim`, `hashes` or `chunk` is below 1, or `buckets` is odd or below 2.
    """

    capabilities = Capabilities(looks=True)

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        hashes: int = 2,
        buckets: int = 64,
        chunk: int = 64,
        seed: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__(dim)
        width = head_width("reformer", dim, heads)
        if min(hashes, chunk) < 1 or buckets < 2 or buckets % 2:
            raise UserError(
                "reformer expected hashes and a chunk of at least 1 and an even number of buckets, got "
                f"hashes={hashes}, chunk={chunk} and buckets={buckets}; change them."
            )
        self.heads = heads
        self.chunk = chunk
        self.query_key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)
        rotations = torch.randn(heads, width, hashes, buckets // 2, generator=torch.Generator().manual_seed(seed))
        self.rotations: Tensor
        self.register_buffer("rotations", rotations)

    def gather_values(self, x: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
        # In at least float32: rounded queries would fall into other buckets.
        dtype = accumulation_dtype(x.dtype)
        weight, bias = weight_and_bias(self.query_key)
        with torch.autocast(x.device.type, enabled=False):
            shared = nn.functional.linear(x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype))
        query_key = split_heads(shared, self.heads)
        buckets = hash_buckets(query_key, self.rotations.to(dtype))
        return lsh_attention(query_key, values, buckets, self.chunk, mask)

    def operations(self, length: int) -> int:
        _, _, hashes, directions = self.rotations.shape
        # A row of one chunk is attended to once, as a whole.
        rounds, seen = (1, length) if length <= self.chunk else (hashes, 2 * self.chunk)
        return length * self.dim * (6 * self.dim + 2 * hashes * directions + 4 * rounds * seen)


def naive(mixer: Reformer, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` position by position, hashing vector by vector."""
    query_key, value = (
        torch.stack(projection(x).chunk(mixer.heads, -1), 1) for projection in (mixer.query_key, mixer.value)
    )
    buckets = hash_buckets_naive(query_key, mixer.rotations)
    mixed = lsh_attention_naive(query_key, value, buckets, mixer.chunk, mask)
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = torch.arange(x.shape[1]) if mask is None else mask[row].nonzero().flatten()
        y[row, real] = mixer.output(torch.cat(list(mixed[row][:, real]), -1))
    return y
