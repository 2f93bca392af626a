"""Weights of an encoder-decoder model's decoder over the source: `aligned_layers` and `context_weights`."""

import contextlib
import itertools
from collections.abc import Collection, Iterator
from typing import Any

from torch import Tensor
from transformers import PreTrainedModel

from longspan import mixers
from longspan.errors import UserError
from longspan.mixers.base import Mixer


def aligned_layers(model: PreTrainedModel) -> list[int]:
    """Return the numbers of the decoder's layers whose weights say best which words are translations of each other.

    These are the last two of those whose cross attention has weights. Garg et al. 2019
    (https://arxiv.org/abs/1909.02074) take the last but one of six; of three layers, the mean of the last two agrees
    better with a dictionary. So do the weights with which a token is predicted, rather than those with which it is read
    (Chen et al. 2020, https://arxiv.org/abs/2004.14837).

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
    return able[-2:]


@contextlib.contextmanager
def context_weights(model: PreTrainedModel, chosen: Collection[int]) -> Iterator[list[Tensor]]:
    """Collect what layers of the decoder read in each forward pass of the model that is called within, by `labels`.

    Args:
        model: An encoder-decoder model, which no other thread uses (`replica`).
        chosen: The numbers of the layers.

    Yields:
        A list. Each pass adds one tensor (b, t, m) for each of the layers, in their order: the weights of source
        tokens, as means over the layer's heads.
    """
    layers, found, handles = model.get_decoder().backbone.layers, list[Tensor](), []
    for block in {id(layers[number]): layers[number] for number in chosen}.values():
        # Layers that share their weights are one module.
        turns = itertools.cycle([number in chosen for number, layer in enumerate(layers) if layer is block])

        def weigh(
            mixer: Mixer, arguments: tuple[Any, ...], options: dict[str, Any], turns: Iterator[bool] = turns
        ) -> None:
            if next(turns):
                context = {name: options[name] for name in ("context", "context_mask")}
                found.append(mixer.context_weights(*arguments, **context).mean(1))

        handles.append(block.cross_mixer.register_forward_pre_hook(weigh, with_kwargs=True))
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()
