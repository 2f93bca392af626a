"""Longformer: a sliding window, and a few global tokens that see everything and are seen everywhere."""

import torch
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.mixers.base import Capabilities
from longspan.mixers.local import keys_in_a_window
from longspan.mixers.looks import Pairwise
from longspan.ops.affine import weight_and_bias
from longspan.ops.heads import head_width, merge_heads, split_heads
from longspan.ops.pooling import softmax_pool, softmax_weights
from longspan.ops.window import Shared, window_attention


class Longformer(Pairwise):
    """Longformer's attention: each position sees its neighbours and the global tokens, which see everything.

    Equations:
        q_t = W_q x_t, k_t = W_k x_t, v_t = W_v x_t, split into heads of width e = dim / heads
        y_t = W_o concat_h( Σ_j softmax_j(q_t·k_j / √e) v_j ) over |t - j| <= radius and over the global j
        for a global t, over all j, with separate projections: q_t = W_qg x_t, k_j = W_kg x_j, v_j = W_vg x_j

    Order of computation: the global keys and values are never formed. q_t·(W_kg x_j) = (W_kgᵀ q_t)·x_j and
        Σ_j α_j W_vg x_j = W_vg Σ_j α_j x_j, so a global token costs 2·t·dim per head instead of sharing 2·t·dim².

    Cost: t·(4·radius + 128 + 2·heads·global_tokens)·dim + 4·t·dim² time, t·dim memory
    Source: Beltagy et al. 2020, "Longformer: The Long-Document Transformer", https://arxiv.org/abs/2004.05150
    Deviations: the global tokens are the first real ones of each document (the paper chooses them by task). Windows
        are not dilated. Distances count every position of a row, masked ones too; masked positions are not seen. A row
        without real positions gives zeros.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        radius: number of neighbours that a position sees on either side (half of the paper's window).
        global_tokens: number of tokens at a document's start that are global.
        bias: whether the seven projections have biases.

    Raises:
        UserError: when `heads` does not divide `dim`, `radius` is negative or `global_tokens` is not positive.
    """

    capabilities = Capabilities(looks=True)

    def __init__(
        self, dim: int, *, heads: int = 8, radius: int = 128, global_tokens: int = 1, bias: bool = True
    ) -> None:
        super().__init__(dim)
        head_width("longformer", dim, heads)
        if radius < 0:
            raise UserError(f"longformer expected a radius of at least 0, got {radius}; choose 0 or more.")
        if global_tokens < 1:
            raise UserError(
                f"longformer expected at least 1 of global_tokens, got {global_tokens}; use 'local' for none."
            )
        self.heads = heads
        self.radius = radius
        self.global_tokens = global_tokens
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.query_global = nn.Linear(dim, dim, bias=bias)
        self.key_global = nn.Linear(dim, dim, bias=bias)
        self.value_global = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        index, present = self._global(real)
        mixed = merge_heads(self._see_near(x, self._split(self.value(x)), real, index, present))
        mixed = mixed.scatter(1, _wide(index, x), self._see_all(x, real, index).to(mixed.dtype))
        y: Tensor = self.output(mixed)
        return y

    def gather_values(self, x: Tensor, mask: Tensor | None, values: Tensor) -> Tensor:
        real = torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask
        index, present = self._global(real)
        near = self._see_near(x, values, real, index, present)
        weights = softmax_weights(self._global_logits(x, index), real).unflatten(2, (-1, self.heads))
        all_of_them = torch.einsum("btgh,bhte->bhge", weights.to(values.dtype), values)
        return near.scatter(2, index[:, None, :, None].expand_as(all_of_them), all_of_them)

    def operations(self, length: int) -> int:
        few = min(self.global_tokens, length)
        # A row that fits in one window is attended to as a whole, with the global tokens prepended.
        seen = keys_in_a_window(length, self.radius, False) + few
        whole = few * (6 * self.dim**2 + 4 * length * self.heads * self.dim)
        return 8 * length * self.dim**2 + 4 * length * seen * self.dim + whole

    def _global(self, real: Tensor) -> tuple[Tensor, Tensor]:
        """Return the indices of the first real positions of each row, (b, g), and which of them exist.

        A row with fewer is filled up with the indices of masked positions, so that none occurs twice.
        """
        first = torch.argsort((~real).to(torch.uint8), dim=1, stable=True)[:, : self.global_tokens]
        return first, real.gather(1, first)

    def _see_all(self, x: Tensor, real: Tensor, index: Tensor) -> Tensor:
        """Outputs of the positions at `index`, from all real ones, (b, g, dim)."""
        pooled = softmax_pool(x, self._global_logits(x, index), real).unflatten(1, (-1, self.heads))
        value_weight, value_bias = weight_and_bias(self.value_global)
        gathered = torch.einsum("bghd,hed->bghe", pooled, value_weight.unflatten(0, (self.heads, -1))).flatten(2)
        return gathered if value_bias is None else gathered + value_bias

    def _see_near(self, x: Tensor, value: Tensor, real: Tensor, index: Tensor, present: Tensor) -> Tensor:
        """Outputs of all positions, from those near them and the global ones at `index`, (b, h, t, e)."""
        query, key = self._split(self.query(x)), self._split(self.key(x))
        places = index[:, None, :, None].expand(-1, self.heads, -1, key.shape[3])
        everywhere = Shared(key.gather(2, places), value.gather(2, places), present)
        # The window leaves out the global keys, which would otherwise count twice.
        near = real.scatter(1, index, torch.zeros_like(present))
        return window_attention(query, key, value, self.radius, near, shared=everywhere)

    def _global_logits(self, x: Tensor, index: Tensor) -> Tensor:
        """Return the scores of all positions for those at `index` and each head, (b, t, g * heads)."""
        query = self.query_global(_take(x, index)).unflatten(2, (self.heads, -1))
        query = query / query.shape[3] ** 0.5
        key_weight, key_bias = weight_and_bias(self.key_global)
        reach = torch.einsum("bghe,hed->bghd", query, key_weight.unflatten(0, (self.heads, -1)))
        logits = x @ reach.flatten(1, 2).mT
        if key_bias is not None:
            logits = logits + (query * key_bias.view(self.heads, -1)).sum(-1).flatten(1).unsqueeze(1)
        return logits

    def _split(self, x: Tensor) -> Tensor:
        return split_heads(x, self.heads)


def _wide(index: Tensor, x: Tensor) -> Tensor:
    """Return position indices (b, g) as an index into x (b, t, d) for gather and scatter."""
    return index.unsqueeze(-1).expand(-1, -1, x.shape[2])


def _take(x: Tensor, index: Tensor) -> Tensor:
    return x.gather(1, _wide(index, x))


def naive(mixer: Longformer, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` from the equations, query by query."""
    y = torch.zeros_like(x)
    for row in range(x.shape[0]):
        real = list(range(x.shape[1])) if mask is None else mask[row].nonzero().flatten().tolist()
        everywhere = real[: mixer.global_tokens]
        for at in real:
            if at in everywhere:
                seen, projections = real, (mixer.query_global, mixer.key_global, mixer.value_global)
            else:
                seen = [j for j in real if abs(j - at) <= mixer.radius or j in everywhere]
                projections = (mixer.query, mixer.key, mixer.value)
            query, key, value = (
                projection(x[row, positions]).unflatten(1, (mixer.heads, -1)).transpose(0, 1)
                for projection, positions in zip(projections, ([at], seen, seen), strict=True)
            )
            scores = query @ key.mT / query.shape[2] ** 0.5
            y[row, at] = mixer.output((scores.softmax(-1) @ value).flatten())
    return y
