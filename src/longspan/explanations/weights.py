"""Raw weights of positions, which are no explanations: `weight`, and by layer and head `weight_rows`."""

from collections.abc import Iterable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from longspan.errors import UserError
from longspan.explanations.question import LayerWeights, Question
from longspan.mixers.base import SHARES


def weight(question: Question) -> Float[Tensor, " t"]:
    """Return the mean over layers, names and heads of the weights of each position, which add up to one.

    Weights that are no shares, such as what a memory keeps, are first divided by their sum. A large weight does not
    mean that a position matters for the number. Cost: see `looks`.

    Raises:
        UserError: No layer has weights of positions, or a mixer shows none.
    """
    return mean_weight(question.weights(), question.real)


def mean_weight(weights: Iterable[LayerWeights], real: Bool[Tensor, " t"]) -> Float[Tensor, " t"]:
    """Return `weight` from `Question.weights`; `real` is True at real positions."""
    found = []
    for _, name, own in weights:
        mean = own.mean(0)
        found.append(mean if name in SHARES else mean / mean.sum().clamp_min(torch.finfo(mean.dtype).tiny))
    if not found:
        raise UserError(
            "expected a model whose mixers have weights of positions, got none that has; choose another method."
        )
    return torch.stack(found).mean(0) * real


def weight_rows(weights: Iterable[LayerWeights]) -> dict[str, Float[Tensor, " t"]]:
    """Return weights of `Question.weights` by layer, head or slot, and name, such as "layer 1, head 2, alpha".

    They are shown as they are. What recurrent layers and decaying memories keep has a row per layer, the mean of its
    units. On the CPU.
    """
    rows = {}
    for layer, name, own in weights:
        part = "slot" if name in ("send", "receive") else "head"
        if len(own) == 1 or name == "kept":
            rows[f"{layer}, {name}"] = own.mean(0)
        else:
            rows |= {f"{layer}, {part} {n}, {name}": row for n, row in enumerate(own, 1)}
    return rows
