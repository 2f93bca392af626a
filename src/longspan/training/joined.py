"""Several optimizers as one: `Joined`."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn
from torch.optim import Optimizer


class Joined(Optimizer):
    """Several optimizers as one, each with parameters of its own.

    They share their parameter groups with this one, so that schedules reach all of them. What else the first one has,
    such as the modes of schedule-free optimizers, is found here too.

    Args:
        parts: optimizers by name, under which checkpoints have their states.
    """

    def __init__(self, parts: Mapping[str, Optimizer]) -> None:
        self.parts = dict(parts)
        super().__init__([group for part in self.parts.values() for group in part.param_groups], {})
        self._share()

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take a step with each."""
        for part in self.parts.values():
            part.step()

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        if state_dict.keys() != self.parts.keys():
            raise ValueError(f"expected the states of {', '.join(self.parts)}, got those of {', '.join(state_dict)}")
        for name, part in self.parts.items():
            part.load_state_dict(state_dict[name])
        self._share()

    def _share(self) -> None:
        """Have the groups of all parts, which loading replaces."""
        self.param_groups = [group for part in self.parts.values() for group in part.param_groups]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "parts":
            raise AttributeError(name)
        return getattr(next(iter(self.parts.values())), name)


def take(optimizer: Optimizer, weights: Sequence[nn.Parameter]) -> None:
    """Take weights out of an optimizer, so that another one can have them."""
    taken = {id(weight) for weight in weights}
    for group in optimizer.param_groups:
        group["params"] = [each for each in group["params"] if id(each) not in taken]
