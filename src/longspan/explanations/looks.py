"""How the layers of a model read an example: the looks of their mixers, and the raw weights in them."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformers import PreTrainedModel

from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.mixers import Look
from longspan.mixers._looks import SHARES


@torch.no_grad()
def looks(model: PreTrainedModel, batch: Mapping[str, Tensor], at: int | None = None) -> list[Look]:
    """Return the look of each layer's mixer at what it reads (`Mixer.look`), from the first layer to the last.

    Cost: about two forward passes, and for mixers that weigh pairs of positions a few more. Memory grows as that of a
    forward pass.

    Args:
        model: a model of longspan, in evaluation mode.
        batch: the arguments of its `forward`.
        at: the position that reads; None: whole rows, or the last real position of causal mixers.

    Raises:
        UserError: for a mixer that shows no looks, and a position that is not in the rows.
    """
    found: list[Look] = []

    def look(mixer: Any, arguments: tuple[Any, ...], options: dict[str, Any]) -> None:
        found.append(mixer.look(*arguments[:2], at=at))

    # Layers that share weights have the same mixer, which is called for each.
    mixers: list[nn.Module] = list(dict.fromkeys(block.mixer for block in model.base_model.backbone.layers))
    handles = [mixer.register_forward_pre_hook(look, with_kwargs=True) for mixer in mixers]
    try:
        model(**batch)
    finally:
        for handle in handles:
            handle.remove()
    return found


def weight_rows(question: Question) -> dict[str, Float[Tensor, " t"]]:
    """Return the weights of each position by layer, head or slot, and name, such as "layer 1, head 2, alpha".

    They are shown as they are. What recurrent layers and decaying memories keep has a row per layer, the mean of its
    units. On the CPU.
    """
    rows = {}
    for layer, name, weights in _weights(question):
        part = "slot" if name in ("send", "receive") else "head"
        if name == "kept":
            rows[f"layer {layer}, {name}"] = weights.mean(0)
        else:
            rows |= {f"layer {layer}, {part} {n}, {name}": row for n, row in enumerate(weights, 1)}
    return rows


def weight(question: Question) -> Float[Tensor, " t"]:
    """Return the mean over layers, names and heads of the weights of each position, which add up to one.

    Weights that are no shares, such as what a memory keeps, are first divided by their sum. A large weight does not
    mean that a position matters for the number. Cost: about two forward passes.

    Raises UserError if no layer has weights of positions.
    """
    found = []
    for _, name, weights in _weights(question):
        mean = weights.mean(0)
        found.append(mean if name in SHARES else mean / mean.sum().clamp_min(torch.finfo(mean.dtype).tiny))
    if not found:
        raise UserError(
            "expected a model whose mixers have weights of positions, got none that has; choose another method."
        )
    return torch.stack(found).mean(0)


def _weights(question: Question) -> Iterator[tuple[int, str, Float[Tensor, "n t"]]]:
    """Yield the number of each layer, from 1, the name of weights and the weights."""
    for layer, look in enumerate(looks(question.model, question.batch), 1):
        for name, weights in look.weights.items():
            yield layer, name, weights[0].float().cpu()
