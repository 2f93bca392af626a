"""One-dimensional convolution over positions."""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from longspan.errors import UserError
from longspan.mixers.base import Capabilities, Look, Mixer
from longspan.mixers.looks import distances_of
from longspan.ops.blocks import carried_through_blocks
from longspan.ops.scan import accumulation_dtype


class LastInputs(NamedTuple):
    """The inputs that the next position still sees, (b, kernel_size - 1, dim); zeros before the first."""

    inputs: Tensor


class Convolution(Mixer):
    """1-D convolution: each position mixes its neighbours with weights that depend on their distance alone.

    Equations (k = kernel_size; W_0 ... W_{k-1} are dim x dim, or diagonal when depthwise):
        y_t = b + Σ_i W_i x_{t + i - (k-1)/2},  i = 0 ... k-1
        causal: y_t = b + Σ_i W_i x_{t + i - (k-1)}
        x is zero before the first position, after the last, and where it is masked

    Cost: kernel_size·t·dim² time (depthwise kernel_size·t·dim), t·dim memory; state of kernel_size - 1 inputs
    Source: Kim 2014, "Convolutional Neural Networks for Sentence Classification", https://arxiv.org/abs/1408.5882
    Deviations: a width-keeping layer without a non-linearity or pooling. Distances are those of the row as it is: a
        masked position stays where it is and counts as zeros.

    Args:
        dim: width of the input and the output.
        causal: whether a position sees only itself and those before it.
        kernel_size: number of positions seen at once; odd unless causal, so that there is a middle one.
        depthwise: whether each feature is convolved with itself only.
        bias: whether a bias is added.

    Raises:
        UserError: when `kernel_size` is below 1, or even without `causal`.
    """

    capabilities = Capabilities(causal=True, streaming=True, looks=True, slices=True)

    def __init__(
        self, dim: int, *, causal: bool = False, kernel_size: int = 3, depthwise: bool = False, bias: bool = True
    ) -> None:
        super().__init__(dim, causal=causal)
        if kernel_size < 1 or not (causal or kernel_size % 2):
            raise UserError(
                "convolution expected a kernel_size of at least 1, and an odd one unless causal=True, got "
                f"kernel_size={kernel_size}; change it."
            )
        self.kernel_size = kernel_size
        self.depthwise = depthwise
        self.kernel = nn.Conv1d(dim, dim, kernel_size, groups=dim if depthwise else 1, bias=bias)
        self.before = kernel_size - 1 if causal else kernel_size // 2

    @property
    def halo(self) -> tuple[int, int]:
        return self.before, 0 if self.causal else self.before

    def mix(self, x: Tensor, mask: Tensor | None) -> Tensor:
        ahead = 0 if self.causal else self.before
        padded = nn.functional.pad(x, (0, 0, self.before, ahead))
        first, rest = padded.split((self.before + ahead, x.shape[1]), 1)
        y, _ = carried_through_blocks(self._continue, 1, LastInputs(first), rest)
        return y

    def look_at(self, x: Tensor, mask: Tensor | None, at: Tensor | None) -> Look:
        """Show distances alone: the norm of the kernel's weights there. Nothing depends on what is at the positions."""
        norms = self.kernel.weight.detach().to(accumulation_dtype(x.dtype)).flatten(0, 1).norm(dim=0)
        steps = (torch.arange(self.kernel_size, device=x.device) - self.before).abs()
        mass = norms.new_zeros(1, self.before + 1).index_add_(1, steps, norms.unsqueeze(0))
        return Look({}, *distances_of(mass / norms.sum()))

    def operations(self, length: int) -> int:
        return 2 * self.kernel_size * length * self.dim * (1 if self.depthwise else self.dim)

    def empty_state(self, batch_size: int, dtype: torch.dtype, device: torch.device) -> LastInputs:
        return LastInputs(torch.zeros(batch_size, self.before, self.dim, dtype=dtype, device=device))

    def advance(self, x: Tensor, mask: Tensor | None, state: LastInputs) -> tuple[Tensor, LastInputs]:
        """Masked positions count as zeros."""
        return self._continue(LastInputs(state.inputs.to(x.dtype)), x)

    def _continue(self, state: LastInputs, x: Tensor) -> tuple[Tensor, LastInputs]:
        """Return (b, n, dim) for inputs (b, n, dim) and the kernel_size - 1 before them."""
        seen = torch.cat((state.inputs, x), 1)
        y = self.kernel(seen.transpose(1, 2)).transpose(1, 2)
        # A copy: a view would keep everything seen so far in memory.
        return y, LastInputs(seen[:, x.shape[1] :].clone())


def naive(mixer: Convolution, x: Tensor, mask: Tensor | None = None) -> Tensor:
    """Compute `mixer(x, mask)` from the formula, one pair of positions after the other."""
    y = torch.zeros_like(x)
    weight, bias = mixer.kernel.weight, mixer.kernel.bias
    size = weight.shape[2]
    for row, t in torch.ones(x.shape[:2]).nonzero().tolist() if mask is None else mask.nonzero().tolist():
        for i in range(size):
            seen = t + i - (size - 1 if mixer.causal else (size - 1) // 2)
            if 0 <= seen < x.shape[1] and (mask is None or mask[row, seen]):
                w = weight[:, :, i]
                y[row, t] += w.squeeze(1) * x[row, seen] if mixer.kernel.groups > 1 else w @ x[row, seen]
        if bias is not None:
            y[row, t] += bias
    return y
