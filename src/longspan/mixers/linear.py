"""Linear attention: softmax attention with the exponential replaced by a product of positive features."""

from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.mixers import check_causal
from longspan.ops.attention import check_context, served
from longspan.ops.heads import head_width, merge_heads, split_heads
from longspan.ops.linear import (
    LinearSums,
    causal_linear_attention,
    empty_sums,
    linear_attention,
    linear_attention_naive,
)
from longspan.ops.packing import by_segment, zero_padding


class Linear(nn.Module):
    """Multi-head linear attention: keys and values are summed up once, and every query reads the sums.

    Equations:
        q_t = W_q x_t, k_t = W_k x_t, v_t = W_v x_t, split into heads of width e = dim / heads; φ(u) = elu(u) + 1
        y_i = W_o concat_h( Σ_j (φ(q_i)·φ(k_j)) v_j / Σ_j φ(q_i)·φ(k_j) );  causal: j <= i
        cross attention: q from x, k and v from the context

    Order of computation: Σ_j (φ(q_i)·φ(k_j)) v_j = φ(q_i)·S with S = Σ_j φ(k_j) v_jᵀ, and the normaliser is φ(q_i)·z
    with z = Σ_j φ(k_j). Causal in chunks of C positions: a masked C x C product within a chunk, and the sums S and z
    over all chunks before it.

    Cost: 4·t·dim² + 2·t·dim·e time, t·dim memory; causal 4·t·dim² + 2·t·dim·(C + e) time, dim·e state
    Source: Katharopoulos et al. 2020, "Transformers are RNNs", https://arxiv.org/abs/2006.16236
    Deviations: features of negative numbers are computed as exp, and a query's are divided by their largest if
        that is below one, which the normaliser cancels; so no ε is added to it. Sums in at least float32. A query for
        which all weights vanish (below 1e-20), a row without real positions and one without a real context give zeros.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`.
        causal: whether a position sees only itself and those before it.
        bias: whether the four projections have biases.

    Raises:
        UserError: when `heads` does not divide `dim`; when a context meets causal=True or packed documents.
    """

    def __init__(self, dim: int, *, heads: int = 8, causal: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.width = head_width("linear", dim, heads)
        self.heads = heads
        self.causal = causal
        self.query = nn.Linear(dim, dim, bias=bias)
        self.key = nn.Linear(dim, dim, bias=bias)
        self.value = nn.Linear(dim, dim, bias=bias)
        self.output = nn.Linear(dim, dim, bias=bias)

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
        if self.causal:
            y, _ = self._causal(x, mask, self.init_state(x.shape[0]))
        else:
            source_mask = mask if context is None else context_mask
            y = self.output(merge_heads(linear_attention(*self._project(x, context), source_mask)))
        return zero_padding(y, served(x, mask, context_mask))

    def init_state(self, batch_size: int) -> LinearSums:
        """Return the state before the first position; its size never changes."""
        return empty_sums(batch_size, self.heads, self.width, self.query.weight)

    def step(
        self, x: Float[Tensor, "b n d"], state: LinearSums, mask: Bool[Tensor, "b n"] | None = None
    ) -> tuple[Float[Tensor, "b n d"], LinearSums]:
        """Continue a sequence by `n` positions, of which those where `mask` is False are passed over."""
        check_causal(self)
        y, state = self._causal(x, mask, state)
        return zero_padding(y, mask), state

    def _causal(self, x: Tensor, mask: Tensor | None, state: LinearSums) -> tuple[Tensor, LinearSums]:
        mixed, state = causal_linear_attention(*self._project(x, None), mask, state)
        return self.output(merge_heads(mixed)), state

    def _project(self, x: Tensor, context: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        source = x if context is None else context
        query, key, value = (
            split_heads(projection(tensor), self.heads)
            for projection, tensor in ((self.query, x), (self.key, source), (self.value, source))
        )
        return query, key, value


def naive(
    mixer: Linear,
    x: Tensor,
    mask: Tensor | None = None,
    context: Tensor | None = None,
    context_mask: Tensor | None = None,
) -> Tensor:
    """Compute `mixer(x, mask, context=context, context_mask=context_mask)` from the formula, query by query."""
    source_mask = mask if context is None else context_mask
    mixed = linear_attention_naive(*mixer._project(x, context), source_mask, mixer.causal)
    y: Tensor = mixer.output(merge_heads(mixed))
    if context_mask is not None:
        y = y * context_mask.any(1)[:, None, None]
    return y if mask is None else y * mask.unsqueeze(-1)
