"""The gated delta rule: a matrix per head in which each new value replaces the one its key had."""

from torch import Tensor, nn
from torch.nn.functional import silu

from longspan.mixers._fast_weights import FastWeights, naive_rows
from longspan.ops.delta import gated_delta_rule
from longspan.ops.execution import on_cpu
from longspan.ops.fast_weights.plain import CHUNK
from longspan.ops.normalised import normalised

# In the length of queries and keys.
EPSILON = 1e-6


class Delta(FastWeights):
    """Gated delta rule: linear attention that overwrites what a key held before, and forgets by a gate.

    Equations (per head, of width e = dim / heads; g in (0, 1] and β in (0, 1) are numbers per head):
        q_t = unit(silu(W_q x_t)) / √e, k_t = unit(silu(W_k x_t)), v_t = silu(W_v x_t), unit(u) = u / √(|u|² + 1e-6)
        β_t = σ(W_β x_t),  g_t = exp(-softplus(s + W x_t))
        S_t = g_t (I - β_t k_t k_tᵀ) S_{t-1} + β_t k_t v_tᵀ,  o_t = S_tᵀ q_t
        y_t = W_o concat_h(rmsnorm(o_t) ⊙ silu(W_g x_t))
        not causal: the second half of the heads reads from the end

    Order of computation: on a CPU, a compiled loop over positions, whose S stays in the cache. Elsewhere in chunks of
    C = 32 positions. What a chunk writes solves a C x C triangular system, for all chunks at once; from chunk to chunk,
    one after the other, S takes two products. No exponent is above zero. A GPU has kernels of flash-linear-attention
    for tensors of bfloat16, where fla-core is installed.

    Cost: 5·t·dim² + 3·t·dim·e time, t·dim memory; dim·e state. In chunks 5·t·dim² + t·dim·(5·C + 6·e) time, t / C steps
        one after the other
    Source: Yang et al. 2024, "Gated Delta Networks", https://arxiv.org/abs/2412.06464; decay="none" is the delta rule
        of Schlag et al. 2021, https://arxiv.org/abs/2102.11174
    Deviations: gates start spread over time constants from 2 to 4,096 positions, as those of all mixers that forget.
        Values are as wide as keys, not twice as wide, and convolutions belong to the model. Two directions are this
        project's.
    Compile: devices without compiled loops or kernels unroll the loop over chunks, once for each number of them.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`, and be even without `causal`.
        causal: whether a position sees only itself and those before it; otherwise there are two directions.
        decay: "input" (as above), "learned" (without W x_t), "fixed" (constants) or "none".

    Raises:
        UserError: when `heads` does not divide `dim` or is odd without `causal`, or `decay` is unknown.
    """

    NAME = "delta"

    def __init__(self, dim: int, *, heads: int = 8, causal: bool = False, decay: str = "input") -> None:
        super().__init__(dim, heads=heads, causal=causal, decay=decay)
        self.strength = nn.Linear(dim, heads, bias=False)

    def values(self, x: Tensor) -> Tensor:
        return silu(self.split(self.value, x))

    def retrieve(
        self, x: Tensor, values: Tensor, rates: Tensor, state: Tensor, backwards: int
    ) -> tuple[Tensor, Tensor]:
        query, key = self._unit(self.query, x, self.width**-0.5), self._unit(self.key, x, 1.0)
        strength = self.strength(x).sigmoid().transpose(1, 2)
        return gated_delta_rule(query, key, values, strength, rates, state, backwards=backwards)

    def _unit(self, projection: nn.Module, x: Tensor, length: float) -> Tensor:
        """Return a projection of each position as vectors of this length, (b, h, t, e)."""
        return normalised(silu(projection(x)).unflatten(2, (self.heads, -1)), length, EPSILON).transpose(1, 2)

    def operations(self, length: int) -> int:
        if on_cpu(self.scale):
            sums = 6 * length * self.dim * self.width
        else:
            chunk = min(CHUNK, length)
            # The last chunk is padded. A triangular system takes half of what a product would.
            sums = chunk * -(-length // chunk) * self.dim * (8 * chunk + 6 * self.width)
        return 2 * length * self.dim * (5 * self.dim + self.heads) + sums + self.forgetting.operations(length)


def naive(mixer: Delta, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` as the recurrence, one position after the other."""

    def write(matrix: Tensor, now: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        projected = (projection(now).view(mixer.heads, -1) for projection in (mixer.query, mixer.key, mixer.value))
        query, key, value = (u * u.sigmoid() for u in projected)
        query, key = (u / (u.square().sum(1, keepdim=True) + EPSILON).sqrt() for u in (query, key))
        strength = (1 / (1 + (-mixer.strength(now)).exp())).view(-1, 1, 1)
        held = (key.unsqueeze(2) * matrix).sum(1)
        matrix = (-rate).exp().unsqueeze(2) * (matrix - strength * key.unsqueeze(2) * held.unsqueeze(1))
        matrix = matrix + strength * key.unsqueeze(2) * value.unsqueeze(1)
        return matrix, (query.unsqueeze(2) * matrix).sum(1) / mixer.width**0.5

    return naive_rows(mixer, x, mask, write)
