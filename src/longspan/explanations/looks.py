"""How the layers of a model read an example: the looks of their mixers."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.mixers import Look


@torch.no_grad()
def looks(model: PreTrainedModel, batch: Mapping[str, Tensor], at: int | None = None) -> list[Look]:
    """Return the look of each layer's mixer at what it reads (`Mixer.look`), from the first layer to the last.

    Cost: about 1.5 forward passes. Of whole rows, mixers that weigh pairs of positions take 4 (linear attention) to 15
    (softmax, local, delta), most of it for distances. Memory grows as that of a forward pass.

    Args:
        model: a model of longspan, in evaluation mode.
        batch: the arguments of its `forward`.
        at: the position that reads; None: whole rows, or the last real position of causal mixers.

    Raises:
        UserError: for a mixer that shows no looks, and a position that is not in the rows.
    """
    found: list[Look] = []

    def look(mixer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        # Without a graph, its mixers read a chain.
        along = {name: options[name] for name in ("edges", "edge_features") if options.get(name) is not None}
        found.append(mixer.look(*arguments[:2], at=at, **along))

    # Layers that share weights have the same mixer, which is called for each.
    mixers: list[nn.Module] = list(dict.fromkeys(block.mixer for block in model.base_model.backbone.layers))
    handles = [mixer.register_forward_pre_hook(look, with_kwargs=True) for mixer in mixers]
    try:
        model(**batch)
    finally:
        for handle in handles:
            handle.remove()
    return found
