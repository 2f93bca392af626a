"""Standard multi-head softmax attention."""

import torch
from jaxtyping import Bool
from torch import Tensor, nn

from longspan.mixers._cache import KeyValueCache, empty_cache, forgotten, joined
from longspan.mixers._naive import attend, steps_to
from longspan.mixers._numbered import Numbered, check_rotary, continued, nothing_seen
from longspan.mixers.base import Capabilities, ContextState, State
from longspan.mixers.looks import Pairwise
from longspan.ops.alibi import alibi_attention
from longspan.ops.attention import attention, attention_weights
from longspan.ops.cache import all_visible, as_mask
from longspan.ops.heads import head_width, merge_heads, split_heads, weighted
from longspan.ops.rotary import real_numbers, rotated


class Softmax(Pairwise):
    """Multi-head softmax attention: every position looks at every other.

    Equations:
        q_t = W_q x_t, k_t = W_k x_t, v_t = W_v x_t, split into heads of width e = dim / heads
        y_t = W_o concat_h( Σ_j softmax_j(q_t·k_j / √e) v_j );  causal: j <= t
        rotary: channels 2l and 2l+1 of each head's q_t and k_t are turned by t·10000^(-2l/e)
        alibi: -2^(-8h/heads)·|i - j| is added to the scores of head h = 1 ... heads
        cross attention: q from x, k and v from the context, without either. Each position of x reads the context by
            itself, so both forms give the same, and steps keep nothing of x.

    Cost: t²·dim + 4·t·dim² time, t·dim memory (scores are never stored whole); with a context of m, m·dim per step
    Source: Vaswani et al. 2017, "Attention Is All You Need", https://arxiv.org/abs/1706.03762
    Deviations: none. A row without real positions, or without a real context, gives zeros. Positions and distances
        count real positions only. Rotary positions: Su et al. 2021; linear biases: Press et al. 2021, who have other
        slopes where the number of heads is no power of two, and no form that is not causal.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        causal: whether a position sees only itself and those before it.
        bias: whether the four projections have biases.
        output_projection: whether heads are mixed by W_o; without it their concatenation is the output.
        rotary: whether queries and keys are rotated by their position, so that scores know the distance.
        alibi: whether scores fall with the distance.

    Raises:
        UserError: when `heads` does not divide `dim`; when a context meets packed documents; for rotary positions of
            heads of an odd width.
    """

    capabilities = Capabilities(causal=True, streaming=True, context=True, weights=True, counts=True, looks=True)
    bounded_state = False

    def __init__(
        self,
        dim: int,
        *,
        heads: int = 8,
        causal: bool = False,
        bias: bool = True,
        output_projection: bool = True,
        rotary: bool = False,
        alibi: bool = False,
    ) -> None:
        super().__init__(dim, causal=causal)
        self.width = head_width("softmax", dim, heads)
        check_rotary("softmax", rotary, self.width)
        self.heads = heads
        self.rotary = rotary
        self.alibi = alibi
        self._attend = alibi_attention if alibi else attention
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias) if output_projection else nn.Identity()

    def gather_values(self, x: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
        query, key = self._projected(x, real_numbers(x, mask) if self.rotary else None)
        return self._attend(query, key, values, mask, self.causal)

    def read_context(self, context: Tensor, context_mask: Tensor | None) -> ContextState:
        key, value = (split_heads(projection(context), self.heads) for projection in (self.key, self.value))
        visible = all_visible(context.shape[0], context.device) if context_mask is None else context_mask
        return ContextState(KeyValueCache(key, value, visible))

    def advance_context(self, x: Tensor, mask: Tensor | None, state: ContextState) -> tuple[Tensor, ContextState]:
        key, value, visible = state.context
        query = split_heads(self.query(x), self.heads)
        return self.output(merge_heads(attention(query, key, value, as_mask(visible)))), state

    def weigh_context(self, x: Tensor, mask: Tensor | None, context: Tensor, context_mask: Tensor | None) -> Tensor:
        query, key = split_heads(self.query(x), self.heads), split_heads(self.key(context), self.heads)
        return attention_weights(query, key, context_mask)

    def pool_context(self, weights: Tensor, context: Tensor) -> Tensor:
        y: Tensor = self.output(weighted(weights, self.value(context)))
        return y

    def operations(self, length: int) -> int:
        projections = 3 if isinstance(self.output, nn.Identity) else 4
        return 2 * projections * length * self.dim**2 + 4 * length**2 * self.dim

    def context_operations(self, length: int, context_length: int) -> int:
        own = 2 if not isinstance(self.output, nn.Identity) else 1
        projections = own * length + 2 * context_length
        return 2 * projections * self.dim**2 + 4 * length * context_length * self.dim

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> KeyValueCache | Numbered:
        cache = empty_cache(batch_size, self.heads, self.width, dtype, device)
        return nothing_seen(cache, batch_size, device) if self.rotary else cache

    def state_size(self, positions: int) -> int:
        return 2 * positions * self.dim + self.rotary

    def reset(self, state: State, rows: Bool[Tensor, " b"]) -> State:
        return super().reset(state, rows) if isinstance(state, ContextState) else forgotten(state, rows)

    def advance(
        self, x: Tensor, mask: Tensor | None, state: KeyValueCache | Numbered
    ) -> tuple[Tensor, KeyValueCache | Numbered]:
        return continued(self._continue, x, mask, state)

    def _continue(
        self, x: Tensor, mask: Tensor | None, cache: KeyValueCache, numbers: Tensor | None
    ) -> tuple[Tensor, KeyValueCache]:
        query, key = self._projected(x, numbers)
        cache = joined(cache, key, split_heads(self.value(x), self.heads), mask)
        mixed = self._attend(query, cache.key, cache.value, as_mask(cache.visible), causal=True)
        return self.output(merge_heads(mixed)), cache

    def _projected(self, x: Tensor, numbers: Tensor | None) -> tuple[Tensor, Tensor]:
        query, key = (split_heads(each(x), self.heads) for each in (self.query, self.key))
        return (query, key) if numbers is None else (rotated(query, numbers), rotated(key, numbers))


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
            if mixer.causal and context is None:
                seen[i + 1 :] = False
            if seen.any():
                query, keys, values = (
                    mixer.query(x[row, i]),
                    mixer.key(source[row, seen]),
                    mixer.value(source[row, seen]),
                )
                row_mask = None if mask is None else mask[row]
                steps = steps_to(seen.nonzero().flatten(), i, row_mask) if context is None else None
                mixed = attend(query, keys, values, mixer.heads, steps, rotary=mixer.rotary, alibi=mixer.alibi)
                y[row, i] = mixer.output(mixed)
    return y
