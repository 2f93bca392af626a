"""Local attention: softmax attention to nearby positions only."""

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.mixers._cache import KeyValueCache, empty_cache, forgotten, joined
from longspan.mixers._naive import attend, steps_to
from longspan.mixers._numbered import Numbered, check_rotary, continued, nothing_seen
from longspan.mixers.base import Capabilities
from longspan.mixers.looks import Pairwise
from longspan.ops.cache import as_mask
from longspan.ops.heads import head_width, merge_heads, split_heads
from longspan.ops.rotary import real_numbers, rotated
from longspan.ops.window import window_attention
from longspan.ops.window.sliding import BLOCK


def keys_in_a_window(length: int, radius: int, causal: bool) -> int:
    """Number of keys that `window_attention` scores for each query of a row, including some that only others see."""
    if radius >= length - 1:
        return length
    reach = radius if causal else 2 * radius
    return reach + min(length, BLOCK if reach >= 2 * BLOCK else BLOCK // 2)


class Local(Pairwise):
    """Softmax attention in which each position sees only its neighbours.

    Equations:
        q_t = W_q x_t, k_t = W_k x_t, v_t = W_v x_t, split into heads of width e = dim / heads
        y_t = W_o concat_h( Σ_j softmax_j(q_t·k_j / √e) v_j ) over |t - j| <= radius;  causal: 0 <= t - j <= radius
        rotary: channels 2l and 2l+1 of each head's q_t and k_t are turned by t·10000^(-2l/e)
        alibi: -2^(-8h/heads)·|t - j| is added to the scores of head h = 1 ... heads

    Cost: t·(4·radius + 128)·dim + 4·t·dim² time, t·dim memory, a state of radius keys and values
    Source: Vaswani et al. 2017, "Attention Is All You Need", section 4 (restricted), https://arxiv.org/abs/1706.03762
    Deviations: none. The radius counts every position of a row, masked ones too. Rotary positions (Su et al. 2021) and
        linear biases (Press et al. 2021) count real positions only, as in `softmax`. Masked positions are not seen. A
        row without real positions gives zeros.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        causal: whether a position sees only itself and the `radius` positions before it.
        radius: number of neighbours that a position sees on either side.
        bias: whether the four projections have biases.
        rotary: whether queries and keys are rotated by their position, so that scores know the distance.
        alibi: whether scores fall with the distance.

    Raises:
        UserError: when `heads` does not divide `dim` or `radius` is negative; for rotary positions of heads of an odd
            width.
    """

    capabilities = Capabilities(causal=True, streaming=True, counts=True, looks=True, slices=True)

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        causal: bool = False,
        radius: int = 128,
        bias: bool = True,
        rotary: bool = False,
        alibi: bool = False,
    ) -> None:
        super().__init__(dim, causal=causal)
        self.width = head_width("local", dim, heads)
        if radius < 0:
            raise UserError(f"local expected a radius of at least 0, got {radius}; at 0 a position sees only itself.")
        check_rotary("local", rotary, self.width)
        self.heads = heads
        self.rotary = rotary
        self.alibi = alibi
        self.radius = radius
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)

    @property
    def halo(self) -> tuple[int, int]:
        return self.radius, 0 if self.causal else self.radius

    def gather_values(self, x: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
        query, key = self._projected(x, real_numbers(x, mask) if self.rotary else None)
        return window_attention(query, key, values, self.radius, mask, self.causal, alibi=self.alibi)

    def operations(self, length: int) -> int:
        seen = keys_in_a_window(length, self.radius, self.causal)
        return 8 * length * self.dim**2 + 4 * length * seen * self.dim

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> KeyValueCache | Numbered:
        cache = empty_cache(batch_size, self.heads, self.width, dtype, device)
        return nothing_seen(cache, batch_size, device) if self.rotary else cache

    def state_size(self, positions: int) -> int:
        return 2 * min(positions, self.radius) * self.dim + self.rotary

    def reset(self, state: KeyValueCache | Numbered, rows: Bool[Tensor, " b"]) -> KeyValueCache | Numbered:
        return forgotten(state, rows)

    def advance(
        self, x: Tensor, mask: Tensor | None, state: KeyValueCache | Numbered
    ) -> tuple[Tensor, KeyValueCache | Numbered]:
        """Masked positions are not seen, but count for the radius."""
        return continued(self._continue, x, mask, state)

    def _continue(
        self, x: Tensor, mask: Tensor | None, cache: KeyValueCache, numbers: Tensor | None
    ) -> tuple[Tensor, KeyValueCache]:
        query, key = self._projected(x, numbers)
        seen = joined(cache, key, split_heads(self.value(x), self.heads), mask)
        visible = as_mask(seen.visible)
        mixed = window_attention(query, seen.key, seen.value, self.radius, visible, True, alibi=self.alibi)
        past = max(0, seen.key.shape[2] - self.radius)
        # Copies: a view would keep everything seen so far in memory.
        kept = KeyValueCache(
            seen.key[:, :, past:].clone(), seen.value[:, :, past:].clone(), seen.visible[:, past:].clone()
        )
        return self.output(merge_heads(mixed)), kept

    def _projected(self, x: Tensor, numbers: Tensor | None) -> tuple[Tensor, Tensor]:
        query, key = (split_heads(each(x), self.heads) for each in (self.query, self.key))
        return (query, key) if numbers is None else (rotated(query, numbers), rotated(key, numbers))


def naive(mixer: Local, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` from the formula, query by query."""
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = list(range(x.shape[1])) if mask is None else mask[row].nonzero().flatten().tolist()
        for i in real:
            seen = [j for j in real if abs(i - j) <= mixer.radius and (j <= i or not mixer.causal)]
            query, keys, values = mixer.query(x[row, i]), mixer.key(x[row, seen]), mixer.value(x[row, seen])
            steps = steps_to(torch.tensor(seen), i, None if mask is None else mask[row])
            mixed = attend(query, keys, values, mixer.heads, steps, rotary=mixer.rotary, alibi=mixer.alibi)
            y[row, i] = mixer.output(mixed)
    return y
