"""Standard multi-head softmax attention."""

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from longspan.mixers._cache import KeyValueCache, empty_cache, forgotten, joined
from longspan.mixers._naive import attend
from longspan.mixers.base import Capabilities, Mixer
from longspan.ops.attention import attention
from longspan.ops.cache import as_mask
from longspan.ops.heads import head_width, merge_heads, split_heads


class Softmax(Mixer):
    """Multi-head softmax attention: every position looks at every other.

    Equations:
        q_t = W_q x_t, k_t = W_k x_t, v_t = W_v x_t, split into heads of width e = dim / heads
        y_t = W_o concat_h( Σ_j softmax_j(q_t·k_j / √e) v_j );  causal: j <= t
        cross attention: q from x, k and v from the context

    Cost: t²·dim + 4·t·dim² time, t·dim memory (scores are never stored whole)
    Source: Vaswani et al. 2017, "Attention Is All You Need", https://arxiv.org/abs/1706.03762
    Deviations: none. A row without real positions, or without a real context, gives zeros.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        causal: whether a position sees only itself and those before it.
        bias: whether the four projections have biases.
        output_projection: whether heads are mixed by W_o; without it their concatenation is the output.

    Raises:
        UserError: when `heads` does not divide `dim`; when a context meets causal=True or packed documents.
    """

    capabilities = Capabilities(causal=True, streaming=True, context=True)
    bounded_state = False

    def __init__(
        self, dim: int, *, heads: int = 8, causal: bool = False, bias: bool = True, output_projection: bool = True
    ) -> None:
        super().__init__(dim, causal=causal)
        self.width = head_width("softmax", dim, heads)
        self.heads = heads
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias) if output_projection else nn.Identity()

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        return self._attend(x, x, mask)

    def mix_context(self, x: Tensor, mask: Tensor | None, context: Tensor, context_mask: Tensor | None) -> Tensor:
        return self._attend(x, context, context_mask)

    def operations(self, length: int) -> int:
        projections = 3 if isinstance(self.output, nn.Identity) else 4
        return 2 * projections * length * self.dim**2 + 4 * length**2 * self.dim

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> KeyValueCache:
        return empty_cache(batch_size, self.heads, self.width, dtype, device)

    def state_size(self, positions: int) -> int:
        return 2 * positions * self.dim

    def reset(self, state: KeyValueCache, rows: Bool[Tensor, " b"]) -> KeyValueCache:
        return forgotten(state, rows)

    def advance(self, x: Tensor, mask: Tensor | None, state: KeyValueCache) -> tuple[Tensor, KeyValueCache]:
        query, key, value = (split_heads(each(x), self.heads) for each in (self.query, self.key, self.value))
        state = joined(state, key, value, mask)
        mixed = attention(query, state.key, state.value, as_mask(state.visible), causal=True)
        return self.output(merge_heads(mixed)), state

    def _attend(self, x: Tensor, source: Tensor, source_mask: Tensor | None) -> Tensor:
        query = split_heads(self.query(x), self.heads)
        key, value = (split_heads(projection(source), self.heads) for projection in (self.key, self.value))
        y: Tensor = self.output(merge_heads(attention(query, key, value, source_mask, self.causal)))
        return y


def naive(
    mixer: Softmax,
    x: Tensor,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Compute `mixer(x, mask, context=context, context_mask=context_mask)` from the formula, query by query."""
    source, source_mask = (x, mask) if context is None else (context, context_mask)
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        for i in range(x.shape[1]) if mask is None else mask[row].nonzero().flatten().tolist():
            seen = torch.ones(source.shape[1], dtype=torch.bool) if source_mask is None else source_mask[row].clone()
            if mixer.causal:
                seen[i + 1 :] = False
            if seen.any():
                query, keys, values = (
                    mixer.query(x[row, i]),
                    mixer.key(source[row, seen]),
                    mixer.value(source[row, seen]),
                )
                y[row, i] = mixer.output(attend(query, keys, values, mixer.heads))
    return y
