"""Base class of the wide parts of models: `WidePart`."""

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn


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
