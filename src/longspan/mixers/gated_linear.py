"""Gated linear attention: a matrix of keys and values per head that decays by a gate."""

from dataclasses import replace

import torch
from torch import Tensor

from longspan.errors import check_choice
from longspan.mixers._fast_weights import FastWeights, naive_rows
from longspan.mixers.base import Look
from longspan.mixers.looks import decay_weights
from longspan.ops.execution import on_cpu
from longspan.ops.fast_weights.plain import CHANNEL_CHUNK, CHUNK
from longspan.ops.gated_linear import gated_linear_attention

GATES = ("head", "channel")
# Of the gate's projection, with a gate per channel.
RANK = 16


class GatedLinear(FastWeights):
    """Linear attention without a normaliser, whose memory decays by a gate per head or per channel.

    Equations (per head, of width e = dim / heads; g in (0, 1] is a number per head, or a vector over channels):
        q_t = W_q x_t / √e, k_t = W_k x_t, v_t = W_v x_t
        S_t = diag(g_t) S_{t-1} + k_t v_tᵀ,  o_t = S_tᵀ q_t,  g_t = exp(-softplus(s + W x_t))
        y_t = W_o concat_h(rmsnorm(o_t) ⊙ silu(W_g x_t))
        not causal: the second half of the heads reads from the end

    Order of computation: on a CPU, a compiled loop over positions, whose S stays in the cache. Elsewhere in chunks of C
    positions (32, with a gate per channel 8). Within a chunk, a C x C product whose entries decay by the positions
    between. Between chunks, a scan returns S before each chunk. No exponent is above zero. A GPU has kernels of
    flash-linear-attention for tensors of bfloat16, where fla-core is installed.

    Cost: 5·t·dim² + 2·t·dim·e time (in chunks 2·t·dim·(C + e)), t·dim memory; dim·e state
    Source: Yang et al. 2024, "Gated Linear Attention Transformers", https://arxiv.org/abs/2312.06635 (gate="channel");
        with a gate per head Sun et al. 2023 (RetNet), https://arxiv.org/abs/2307.08621 (decay="fixed"), and Dao and Gu
        2024 (Mamba-2), https://arxiv.org/abs/2405.21060 (decay="input")
    Deviations: gates start spread over time constants from 2 to 4,096 positions, as in all mixers with decay. Gated
        linear attention takes sigmoid(W x_t + b)^(1/16). Keys are as wide as values. RetNet's rotation of positions is
        left out, as is Mamba-2's convolution, which belongs to the model. Two directions are this project's.

    Args:
        dim: width of the input and the output.
        heads: number of heads; must divide `dim`, and be even without `causal`.
        causal: whether a position sees only itself and those before it; otherwise there are two directions.
        gate: "head" (one number for each head) or "channel" (one for each row of S; W has rank 16).
        decay: "input" (as above), "learned" (without W x_t), "fixed" (constants) or "none".

    Raises:
        UserError: when `heads` does not divide `dim` or is odd without `causal`, or an option has an unknown value.
    """

    NAME = "gated_linear"

    def __init__(
        self, dim: int, *, heads: int = 8, causal: bool = False, gate: str = "head", decay: str = "input"
    ) -> None:
        check_choice("gated_linear gate", gate, GATES)
        channels = gate == "channel"
        super().__init__(
            dim, heads=heads, causal=causal, decay=decay, channels=channels, rank=min(RANK, dim) if channels else None
        )

    def values(self, x: Tensor) -> Tensor:
        return self.split(self.value, x)

    def retrieve(
        self, x: Tensor, values: Tensor, rates: Tensor, state: Tensor, backwards: int
    ) -> tuple[Tensor, Tensor]:
        query, key = (self.split(projection, x) for projection in (self.query, self.key))
        return gated_linear_attention(query / self.width**0.5, key, values, rates, state, backwards=backwards)

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        """The same, and "kept": how much of what each position wrote is left, of heads or of all channels."""
        look = super().look_at(x, mask, at)
        rates = self.rates(x, mask)
        rates = rates if rates.ndim == 3 else rates.mT.flatten(1, 2)
        if self.causal:
            left = decay_weights(rates, mask, at)
        else:
            forward, backward = rates.chunk(2, 1)
            turned = None if mask is None else mask.flip(1), None if at is None else x.shape[1] - 1 - at
            left = torch.cat((decay_weights(forward, mask, at), decay_weights(backward.flip(2), *turned).flip(2)), 1)
        return replace(look, weights={**look.weights, "kept": left})

    def operations(self, length: int) -> int:
        if on_cpu(self.scale):
            sums = 4 * length * self.dim * self.width
        else:
            per_channel = self.forgetting.channels > 1
            chunk = min(CHANNEL_CHUNK if per_channel else CHUNK, length)
            # The last chunk is padded; scores of channels are no matrix products.
            sums = 2 * chunk * -(-length // chunk) * self.dim * (2 * self.width + (1 if per_channel else 2) * chunk)
        return 10 * length * self.dim**2 + sums + self.forgetting.operations(length)


def naive(mixer: GatedLinear, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` as the recurrence, one position after the other."""

    def write(matrix: Tensor, now: Tensor, rate: Tensor) -> tuple[Tensor, Tensor]:
        query, key, value = (
            projection(now).view(mixer.heads, -1) for projection in (mixer.query, mixer.key, mixer.value)
        )
        matrix = (-rate).exp().unsqueeze(2) * matrix + key.unsqueeze(2) * value.unsqueeze(1)
        return matrix, (query.unsqueeze(2) * matrix).sum(1) / mixer.width**0.5

    return naive_rows(mixer, x, mask, write)
