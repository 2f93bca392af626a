"""Base classes of the wide parts of models: `WidePart`, and `ScaledPart` for scores that are added."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from longspan.ops.pooling import accumulation_dtype


class WidePart(nn.Module, ABC):
    """Counts of a model: fitted before its network is trained, and combined with it.

    It consists of buffers. As parameters, transformers would have optimizers change them once they come from a file.
    """

    @abstractmethod
    def reset_parameters(self) -> None:
        """Forget everything: the model says what its network says."""

    def size(self) -> int:
        """Number of values in its buffers."""
        return sum(map(Tensor.numel, self.buffers()))

    def local_buffers(self) -> Sequence[str]:
        """Return the names of what each of several processes fits by itself, alike, and need not be sent around."""
        # Those that are fitted later are None at first.
        return [
            f"{prefix}.{name}".removeprefix(".") for prefix, module in self.named_modules() for name in module._buffers
        ]


class ScaledPart(WidePart):
    """Scores of counts, to which those of the network are added, each times its own scale."""

    scales: Tensor

    def __init__(self) -> None:
        super().__init__()
        #: Those of counts and network, chosen on the validation split.
        self.register_buffer("scales", torch.empty(2))

    def reset_parameters(self) -> None:
        for name, tensor in self.named_buffers():
            nn.init.constant_(tensor, float(name == "scales"))

    def combined(self, counts: Float[Tensor, "*n"], network: Float[Tensor, "*n"]) -> Float[Tensor, "*n"]:
        """Scores of both parts together, in at least float32."""
        scales = self.scales.to(network.device, accumulation_dtype(self.scales.dtype))
        return scales[0] * counts + scales[1] * network.to(accumulation_dtype(network.dtype))
