"""A short convolution before a mixer, which lets each position see its neighbours."""

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from longspan.ops.depthwise import depthwise_convolution
from longspan.ops.packing import zero_padding
from longspan.ops.slices import halo


class ShortConvolution(nn.Module):
    """Depthwise convolution over positions: y_t = Σ_i w_i ⊙ x_{t+i-before}, i = 0 ... width - 1.

    Causal: before = width - 1, so that the last weight is that of the position itself. Otherwise before = width // 2,
    so that an even width sees one more position before than after. x is zero before the first position, after the last,
    where it is masked and in other documents; a masked position keeps its place, as in `convolution` and `local`.

    Source: Gu and Dao 2023, "Mamba", section 3.4, https://arxiv.org/abs/2312.00752, without their activation and bias.

    Args:
        dim: number of channels d.
        width: number of positions seen at once, at least 1.
        causal: whether a position sees only itself and those before it.
    """

    def __init__(self, dim: int, width: int, *, causal: bool) -> None:
        super().__init__()
        self.before = width - 1 if causal else width // 2
        self.after = width - 1 - self.before
        self.weight = nn.Parameter(torch.empty(width, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw weights as `nn.Conv1d` does; one that begins as the identity learns more slowly (LOG.md)."""
        bound = len(self.weight) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)

    def init_state(
        self, batch_size: int, dtype: torch.dtype | None = None, device: torch.device | None = None
    ) -> Float[Tensor, "b w d"]:
        """Return the inputs that the next position still sees before the first one: zeros."""
        dtype, device = dtype or self.weight.dtype, device or self.weight.device
        return torch.zeros(batch_size, self.before, self.weight.shape[1], dtype=dtype, device=device)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        mask: Bool[Tensor, "b n"] | None = None,
        document_ids: Int[Tensor, "b n"] | None = None,
        state: Float[Tensor, "b w d"] | None = None,
        counts: Float[Tensor, "b n"] | None = None,
    ) -> tuple[Float[Tensor, "b n d"], Float[Tensor, "b w d"]]:
        """Return the outputs, and the last inputs, from which the next positions continue if it is causal.

        With `counts`, what neighbours see of a position is multiplied by its count; it sees itself as it is.
        """
        x = own = zero_padding(x, mask)
        if counts is not None:
            x = x * counts.unsqueeze(-1).to(x.dtype)
        first, last = halo(x, self.before, self.after)
        if state is not None:
            first = state.to(x.dtype)
        seen = torch.cat((first, x, last), 1)
        together = None
        if document_ids is not None:
            ids = nn.functional.pad(document_ids, (self.before, self.after))
            together = ids.unfold(1, len(self.weight), 1) == document_ids.unsqueeze(-1)
        y = depthwise_convolution(seen, self.weight, together)
        if counts is not None:
            y = y + (own - x) * self.weight[self.before].to(x.dtype)
        # A copy: a view would keep everything seen so far in memory.
        return y, seen[:, seen.shape[1] - self.before :].clone()
