"""The state of a mixer that attends to another sequence."""

from typing import Any, NamedTuple


class ContextState(NamedTuple):
    """The state of a mixer that attends to a context: tensors, the batch first in each.

    Attributes:
        context: what was read of the context. Steps do not change it.
        prefix: what has been seen of x: no tensors where each output depends on one position of x alone.
        served: (b,) bool, which rows have a real position in their context; the others give zeros.
    """

    context: Any
    prefix: Any = ()
    served: Any = ()
