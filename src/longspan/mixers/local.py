"""Local attention: softmax attention to near positions only."""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.mixers import check_causal
from longspan.ops.cache import all_visible, as_mask, extended
from longspan.ops.heads import head_width, merge_heads, split_heads
from longspan.ops.packing import by_segment, zero_padding
from longspan.ops.window import window_attention, window_attention_naive


class WindowCache(NamedTuple):
    """The keys and values of the last positions, each (b, heads, seen, dim / heads), `seen` being at most `radius`, and
    which of them are `visible` (`ops.cache`)."""

    key: Tensor
    value: Tensor
    visible: Tensor


class Local(nn.Module):
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

    def __init__(self, dim: int, *, heads: int = 8, causal: bool = False, radius: int = 128, bias: bool = True) -> None:
        super().__init__()
        head_width("local", dim, heads)
        if radius < 0:
            raise UserError(f"local needs a radius of at least 0, got {radius}; at 0 a position sees only itself.")
        self.heads = heads
        self.causal = causal
        self.radius = radius
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)

    def forward(
        self,
        x: Float[Tensor, "b t d"],
        mask: Bool[Tensor, "b t"] | None = None,
        segments: Int[Tensor, "b t"] | None = None,
    ) -> Float[Tensor, "b t d"]:
        if segments is not None:
            return by_segment(self, x, segments, mask)
        mixed = window_attention(*self._project(x), self.radius, mask, self.causal)
        return zero_padding(self.output(merge_heads(mixed)), mask)

    def init_state(self, batch_size: int) -> WindowCache:
        """Return an empty cache; it grows to `radius` positions and no further."""
        width = self.query.out_features // self.heads
        empty = self.query.weight.new_zeros(batch_size, self.heads, 0, width)
        return WindowCache(empty, empty, all_visible(batch_size, empty))

    def step(
        self, x: Float[Tensor, "b n d"], state: WindowCache, mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], WindowCache]:
        """Continue a sequence by `n` positions; those where `mask` is False are not seen, but count as distance."""
        check_causal(self)
        query, key, value = self._project(x)
        visible = extended(state.visible, state.key.shape[2], x.shape[1], mask)
        key, value = torch.cat((state.key.to(key.dtype), key), 2), torch.cat((state.value.to(value.dtype), value), 2)
        y = self.output(merge_heads(window_attention(query, key, value, self.radius, as_mask(visible), True)))
        past = max(0, key.shape[2] - self.radius)
        # Copies: a view would keep the memory of all that was seen.
        kept = WindowCache(key[:, :, past:].clone(), value[:, :, past:].clone(), visible[:, past:].clone())
        return zero_padding(y, mask), kept

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, value = (
            split_heads(projection(x), self.heads) for projection in (self.query, self.key, self.value)
        )
        return query, key, value


def naive(mixer: Local, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` from the formula, query by query."""
    mixed = window_attention_naive(*mixer._project(x), mixer.radius, mask, mixer.causal)
    y: Tensor = mixer.output(merge_heads(mixed))
    return y if mask is None else y * mask.unsqueeze(-1)
