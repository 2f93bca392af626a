"""Raw weights of positions, which are no explanations: `weight` and `weight_rows`."""

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.errors import UserError
from longspan.explanations.question import Question
from longspan.mixers._looks import SHARES


def weight_rows(question: Question) -> dict[str, Float[Tensor, " t"]]:
    """Return the weights of each position by layer, head or slot, and name, such as "layer 1, head 2, alpha".

    They are shown as they are. What recurrent layers and decaying memories keep has a row per layer, the mean of its
    units. On the CPU.
    """
    rows = {}
    for layer, name, weights in question.weights():
        part = "slot" if name in ("send", "receive") else "head"
        if len(weights) == 1 or name == "kept":
            rows[f"{layer}, {name}"] = weights.mean(0)
        else:
            rows |= {f"{layer}, {part} {n}, {name}": row for n, row in enumerate(weights, 1)}
    return rows


def weight(question: Question) -> Float[Tensor, " t"]:
    """Return the mean over layers, names and heads of the weights of each position, which add up to one.

    Weights that are no shares, such as what a memory keeps, are first divided by their sum. A large weight does not
    mean that a position matters for the number. Cost: about two forward passes.

    Raises UserError if no layer has weights of positions.
    """
    found = []
    for _, name, weights in question.weights():
        mean = weights.mean(0)
        found.append(mean if name in SHARES else mean / mean.sum().clamp_min(torch.finfo(mean.dtype).tiny))
    if not found:
        raise UserError(
            "expected a model whose mixers have weights of positions, got none that has; choose another method."
        )
    return torch.stack(found).mean(0) * question.real
