"""A model for one thread among several that use the same weights: `replica`."""

import copy
import itertools
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def replica(model: Model) -> Model:
    """Return a model with the same weights, which have no gradients there, in modules of its own.

    Hooks of a replica do not run in the model, which other threads may use meanwhile. Cost: milliseconds, no weights.
    """
    shared = {id(tensor): tensor.detach() for tensor in itertools.chain(model.parameters(), model.buffers())}
    return copy.deepcopy(model, shared)
