"""Standard multi-head softmax attention."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.mixers import check_causal
from longspan.ops.attention import attention, attention_naive, check_context, served
from longspan.ops.cache import all_visible, as_mask, extended
from longspan.ops.heads import head_width, merge_heads, split_heads
from longspan.ops.packing import by_segment, zero_padding


class KeyValueCache(NamedTuple):
    """The keys and values seen so far, each (b, heads, seen, dim / heads), and which are `visible` (`ops.cache`)."""

    key: Tensor
    value: Tensor
    visible: Tensor


class Softmax(nn.Module):
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

    def __init__(
        self, dim: int, *, heads: int = 8, causal: bool = False, bias: bool = True, output_projection: bool = True
    ) -> None:
        super().__init__()
        head_width("softmax", dim, heads)
        self.heads = heads
        self.causal = causal
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias) if output_projection else nn.Identity()

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        mask: Bool[Tensor, "b n"] | None = None,
        segments: Int[Tensor, "b n"] | None = None,
        context: Float[Tensor, "b m d"] | None = None,
        context_mask: Bool[Tensor, "b m"] | None = None,
    ) -> Float[Tensor, "b n d"]:
        check_context(self.causal, segments, context, context_mask)
        if segments is not None:
            return by_segment(self, x, segments, mask)
        source_mask = mask if context is None else context_mask
        mixed = attention(*self._project(x, context), mask=source_mask, causal=self.causal)
        return zero_padding(self._merge(mixed), served(x, mask, context_mask))

    def init_state(self, batch_size: int) -> KeyValueCache:
        """Return an empty cache; `step` appends to it, so it grows with what it has seen."""
        width = self.query.out_features // self.heads
        empty = self.query.weight.new_zeros(batch_size, self.heads, 0, width)
        return KeyValueCache(empty, empty, all_visible(batch_size, empty))

    def step(
        self, x: Float[Tensor, "b n d"], state: KeyValueCache, mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], KeyValueCache]:
        """Continue a sequence by `n` positions, of which those where `mask` is False are passed over."""
        check_causal(self)
        query, key, value = self._project(x, None)
        visible = extended(state.visible, state.key.shape[2], x.shape[1], mask)
        key, value = torch.cat((state.key.to(key.dtype), key), 2), torch.cat((state.value.to(value.dtype), value), 2)
        y = self._merge(attention(query, key, value, as_mask(visible), causal=True))
        return zero_padding(y, mask), KeyValueCache(key, value, visible)

    def _project(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        source = x if context is None else context
        query, key, value = (
            split_heads(projection(tensor), self.heads)
            for projection, tensor in ((self.query, x), (self.key, source), (self.value, source))
        )
        return query, key, value

    def _merge(self, mixed: Tensor) -> Tensor:
        y: Tensor = self.output(merge_heads(mixed))
        return y


def naive(
    mixer: Softmax,
    x: Tensor,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Compute `mixer(x, mask, context=context, context_mask=context_mask)` from the formula, query by query."""
    source_mask = mask if context is None else context_mask
    mixed = attention_naive(*mixer._project(x, context), mask=source_mask, causal=mixer.causal)
    y = mixer._merge(mixed)
    if context_mask is not None:
        y = y * context_mask.any(1)[:, None, None]
    return y if mask is None else y * mask.unsqueeze(-1)
