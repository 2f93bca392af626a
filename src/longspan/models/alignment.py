"""What the decoder of an encoder-decoder model reads at each position: `aligned_layer` and `context_weights`."""

import contextlib
import itertools
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.base import Mixer


def aligned_layer(model: PreTrainedModel) -> int:
    """Return the number of the decoder's layer whose weights say best which words are translations of each other.

    This is the last but one (Garg et al. 2019, https://arxiv.org/abs/1909.02074), or the nearest before it, or else the
    last one, of those whose cross attention has weights.

    Raises:
        UserError: There is none.
    """
    crossed = [block.cross_mixer for block in model.get_decoder().backbone.layers]
    able = [number for number, mixer in enumerate(crossed) if mixer is not None and mixer.capabilities.weights]
    if not able:
        names = ", ".join(name for name in mixers.names() if mixers.describe(name).weights)
        found = ", ".join(model.get_decoder().config.cross_mixers) if crossed else "no layers"
        raise UserError(
            f"expected cross attention with a weight for each source token ({names}) for alignments, got {found}; "
            "leave them out, or train with another model.cross_attention."
        )
    return max((number for number in able if number < len(crossed) - 1), default=able[-1])


@contextlib.contextmanager
def context_weights(model: PreTrainedModel, layer: int) -> Iterator[list[Tensor]]:
    """Collect what a layer of the decoder reads in each forward pass of the model that is called within, by `labels`.

    Args:
        model: An encoder-decoder model.
        layer: The number of the layer.

    Yields:
        A list that grows by (b, t, m) with each pass: the mean over the layer's heads of the weights of source tokens.
    """
    layers, found = model.get_decoder().backbone.layers, list[Tensor]()
    own = layers[layer]
    # Layers that share their weights are one module.
    first, each = layers[:layer].count(own), layers.count(own)
    calls = itertools.count()

    def weigh(mixer: Mixer, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        if next(calls) % each == first:
            context = {name: options[name] for name in ("context", "context_mask")}
            found.append(mixer.context_weights(*arguments, **context).mean(1))

    handle = own.cross_mixer.register_forward_pre_hook(weigh, with_kwargs=True)
    try:
        yield found
    finally:
        handle.remove()
