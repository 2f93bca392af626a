"""Attention to a fixed number of summaries of the sequence (Linformer)."""

import torch
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.mixers.base import Capabilities
from longspan.mixers.looks import Pairwise, left_aligned_values
from longspan.ops.affine import weight_and_bias
from longspan.ops.attention import attention
from longspan.ops.chunks import first_of
from longspan.ops.execution import exporting
from longspan.ops.heads import head_width, merge_heads, split_heads
from longspan.ops.packing import left_aligned


class Linformer(Pairwise):
    """Linformer: softmax attention to `rank` learned sums over positions in place of the positions.

    Equations (X is t x dim; E and F are rank x max_length, of which the first t columns are used):
        Q = X W_qᵀ + b_q,  K = E (X W_kᵀ + b_k),  V = F (X W_vᵀ + b_v), split into heads of width e = dim / heads
        y_t = W_o concat_h( Σ_j softmax_j(q_t·K_j / √e) V_j ),  j = 1 ... rank

    Order of computation: E (X W_kᵀ + b_k) = (E X) W_kᵀ + (E 1) b_kᵀ, so that W_k and W_v act on rank rows, not on t.

    Cost: 4·t·rank·dim + 2·t·dim² + 2·rank·dim² time, t·dim memory; 2·rank·max_length parameters more than softmax
    Source: Wang et al. 2020, "Linformer: Self-Attention with Linear Complexity", https://arxiv.org/abs/2006.04768
    Deviations: of the paper's ways to share, "headwise": one E and one F per layer for all heads. E and F are drawn
        from N(0, 1/max_length), so that the sums over a full row start at the scale of one position. Position numbers
        matter. Real positions are numbered from the start of the row, as if there were no padding before or between
        them (`left_aligned`). Masked positions add nothing to K and V. A row without real positions gives zeros.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        rank: number of learned sums that replace the positions; values above `max_length` count as `max_length`.
        max_length: the longest row, padding not counted, that the mixer can take.
        bias: whether the four projections have biases.

    Raises:
        UserError: when `heads` does not divide `dim`, `rank` or `max_length` is below 1, or a row is longer than
            `max_length`.
    """

    capabilities = Capabilities(looks=True)
    max_length: int
    signed = True

    def __init__(self, dim: int, *, heads: int = 8, rank: int = 256, max_length: int = 4096, bias: bool = True) -> None:
        super().__init__(dim)
        head_width("linformer", dim, heads)
        if min(rank, max_length) < 1:
            raise UserError(
                f"linformer expected a rank and a max_length of at least 1, got rank={rank} and "
                f"max_length={max_length}; increase them."
            )
        self.heads = heads
        self.has_bias = bias
        self.max_length = max_length
        rank = min(rank, max_length)
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)
        self.key_sums = nn.Parameter(torch.randn(rank, max_length) / max_length**0.5)
        self.value_sums = nn.Parameter(torch.randn(rank, max_length) / max_length**0.5)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        if mask is None:
            return self._mix_aligned(x, torch.ones_like(x[..., 0], dtype=torch.bool))
        return left_aligned(self._mix_aligned, x, mask)

    def operations(self, length: int) -> int:
        rank = self.key_sums.shape[0]
        products = 4 * length * rank * self.dim + 2 * length * self.dim**2 + 2 * rank * self.dim**2
        # Plus the share of the biases in each sum.
        return 2 * products + (4 * length * rank if self.has_bias else 0)

    def _mix_aligned(self, x: Tensor, mask: Tensor) -> Tensor:
        query = split_heads(self.query(x), self.heads)
        if not exporting():
            # Everything beyond is padding.
            mask, x = mask[:, : self.max_length], x[:, : self.max_length]
        key, value = (
            split_heads(self._project_sums(projection, first_of(sums, 1, x.shape[1]), x, mask), self.heads)
            for projection, sums in ((self.key, self.key_sums), (self.value, self.value_sums))
        )
        y: Tensor = self.output(merge_heads(attention(query, key, value)))
        return y

    def gather_values(self, x: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
        def gather(x: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
            real = torch.ones_like(x[..., 0], dtype=torch.bool) if mask is None else mask
            size = min(x.shape[1], self.max_length)
            key = self._project_sums(self.key, self.key_sums[:, :size], x[:, :size], real[:, :size])
            sums = self.value_sums[:, :size] @ values[:, :, :size]
            return attention(split_heads(self.query(x), self.heads), split_heads(key, self.heads), sums)

        return left_aligned_values(gather, x, mask, values)

    def _project_sums(self, projection: nn.Module, sums: Tensor, x: Tensor, mask: Tensor) -> Tensor:
        """Return `sums @ projection(x)`, without the biases of masked positions, as (b, rank, dim)."""
        weight, bias = weight_and_bias(projection)
        projected = nn.functional.linear(sums @ x, weight)
        return projected if bias is None else projected + (mask.to(sums.dtype) @ sums.T).unsqueeze(-1) * bias


def naive(mixer: Linformer, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` in the paper's order, row by row, head by head and query by query."""
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = torch.arange(x.shape[1]) if mask is None else mask[row].nonzero().squeeze(1)
        n, tokens = len(real), x[row, real]
        parts = []
        for query, key, value in zip(
            mixer.query(tokens).chunk(mixer.heads, 1),
            (mixer.key_sums[:, :n] @ mixer.key(tokens)).chunk(mixer.heads, 1),
            (mixer.value_sums[:, :n] @ mixer.value(tokens)).chunk(mixer.heads, 1),
            strict=True,
        ):
            parts.append(torch.stack([(key @ q / len(q) ** 0.5).softmax(0) @ value for q in query]) if n else query)
        y[row, real] = mixer.output(torch.cat(parts, 1))
    return y
