"""Local attention: softmax attention to nearby positions only."""

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.mixers._cache import KeyValueCache, empty_cache, forgotten, joined
from longspan.mixers._naive import attend
from longspan.mixers.base import Capabilities, Mixer
from longspan.ops.cache import as_mask
from longspan.ops.heads import head_width, merge_heads, split_heads
from longspan.ops.window import window_attention
from longspan.ops.window.sliding import BLOCK


def keys_in_a_window(length: int, radius: int, causal: bool) -> int:
    """Return how many keys `window_attention` scores for each query of a row, including some that only others see."""
    if radius >= length - 1:
        return length
    reach = radius if causal else 2 * radius
    return reach + min(length, BLOCK if reach >= 2 * BLOCK else BLOCK // 2)


class Local(Mixer):
    """Softmax attention in which each position sees only its neighbours.

    Equations:
        q_t = W_q x_t, k_t = W_k x_t, v_t = W_v x_t, split into heads of width e = dim / heads
        y_t = W_o concat_h( Σ_j softmax_j(q_t·k_j / √e) v_j ) over |t - j| <= radius;  causal: 0 <= t - j <= radius

    Cost: t·(4·radius + 128)·dim + 4·t·dim² time, t·dim memory, a state of radius keys and values
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 4 (restricted), https://arxiv.org/abs/1706.03762
    Deviations: none. Distances count every position of a row, masked ones too; masked positions are not seen. A row
        without real positions gives zeros.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        causal: whether a position sees only itself and the `radius` positions before it.
        radius: how many neighbours a position sees on either side.
        bias: whether the four projections have biases.

    Raises:
        UserError: when `heads` does not divide `dim` or `radius` is negative.
    """

    capabilities = Capabilities(causal=True, streaming=True)

    def __init__(self, dim: int, *, heads: int = 8, causal: bool = False, radius: int = 128, bias: bool = True) -> None:
        super().__init__(dim, causal=causal)
        self.width = head_width("local", dim, heads)
        if radius < 0:
            raise UserError(f"local expected a radius of at least 0, got {radius}; at 0 a position sees only itself.")
        self.heads = heads
        self.radius = radius
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        query, key, value = self._projected(x)
        y: Tensor = self.output(merge_heads(window_attention(query, key, value, self.radius, mask, self.causal)))
        return y

    def operations(self, length: int) -> int:
        seen = keys_in_a_window(length, self.radius, self.causal)
        return 8 * length * self.dim**2 + 4 * length * seen * self.dim

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> KeyValueCache:
        return empty_cache(batch_size, self.heads, self.width, dtype, device)

    def state_size(self, positions: int) -> int:
        return 2 * min(positions, self.radius) * self.dim

    def reset(self, state: KeyValueCache, rows: Bool[Tensor, " b"]) -> KeyValueCache:
        return forgotten(state, rows)

    def advance(self, x: Tensor, mask: Tensor | None, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        """Masked positions are not seen, but count as distance."""
        query, key, value = self._projected(x)
        seen = joined(state, key, value, mask)
        y = self.output(
            merge_heads(window_attention(query, seen.key, seen.value, self.radius, as_mask(seen.visible), True))
        )
        past = max(0, seen.key.shape[2] - self.radius)
        # Copies: a view would keep everything seen so far in memory.
        kept = KeyValueCache(
            seen.key[:, :, past:].clone(), seen.value[:, :, past:].clone(), seen.visible[:, past:].clone()
        )
        return y, kept

    def _projected(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (split_heads(each(x), self.heads) for each in (self.query, self.key, self.value))
        return query, key, value


def naive(mixer: Local, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` from the formula, query by query."""
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = list(range(x.shape[1])) if mask is None else mask[row].nonzero().flatten().tolist()
        for i in real:
            seen = [j for j in real if abs(i - j) <= mixer.radius and (j <= i or not mixer.causal)]
            query, keys, values = mixer.query(x[row, i]), mixer.key(x[row, seen]), mixer.value(x[row, seen])
            y[row, i] = mixer.output(attend(query, keys, values, mixer.heads))
    return y
