"""Scores of positions for the number that a model gives an example: `METHODS`.

Scores are positive where a position raises the number; weights say nothing of it. Each method takes a `Question` and
returns (t,) float32 on the CPU, zero at padding.
"""

import math
from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.explanations.question import Question
from longspan.explanations.weights import weight

#: Windows that occlusion begins with, into how many parts each of the strongest ones is cut, how many are, and the
#: number of positions that are not cut.
_COARSE, _PARTS, _STRONGEST, _FINEST = 32, 4, 12, 2


def removal(question: Question) -> Float[Tensor, " t"]:
    """Return the first-order effect of removing each position from all that others read.

    A position counts once in each mean over positions: in the softmax of every mixer, head and layer, and in the
    pooling of the head. The gradient with respect to these counts, all of them at once, is what removing it changes,
    renormalisation included. Cost: one forward and one backward pass. Where positions are few (`Question.exact`), each
    is removed in turn, for a forward pass each.
    """
    if question.exact:
        real = question.real
        whole, without = question.values(real.unsqueeze(0)), question.values(real & ~torch.eye(len(real)).bool())
        return (whole - without) * real
    return _slopes(question, question.counted)


def gradient(question: Question) -> Float[Tensor, " t"]:
    """Return gradient times input: the first-order effect of setting the embedding of each position to zero.

    Cost: one forward and one backward pass.
    Source: Shrikumar et al. 2016, https://arxiv.org/abs/1605.01713
    """

    return _slopes(question, question.scaled)


def occlusion(question: Question) -> Float[Tensor, " t"]:
    """Changes by removing windows, from coarse ones to fine ones where they matter, for each position of them.

    The example is read again without each of 32 windows; those with the largest effects are cut in four, and so on
    until they have two positions. Cost: about 32 + 48·log₄(t/64) forward passes.
    Source: Zeiler and Fergus 2014, https://arxiv.org/abs/1311.2901
    """
    real = question.real.nonzero().squeeze(1)
    whole = float(question.values(question.real.unsqueeze(0)))
    scores = torch.zeros(len(question.real), dtype=torch.float32)
    size = max(1, math.ceil(len(real) / _COARSE))
    windows = list(real.split(size))
    while windows:
        kept = torch.ones(len(windows), len(question.real), dtype=torch.bool)
        for row, window in enumerate(windows):
            kept[row, window] = False
        effects = whole - question.values(kept)
        for window, effect in zip(windows, effects, strict=True):
            scores[window] = effect / len(window)
        strongest = effects.abs().argsort(descending=True)[:_STRONGEST].tolist()
        cut = [windows[row] for row in strongest if len(windows[row]) > _FINEST]
        windows = [part for window in cut for part in window.split(max(1, math.ceil(len(window) / _PARTS)))]
    return scores


METHODS: Mapping[str, Callable[[Question], Tensor]] = {
    "removal": removal,
    "gradient": gradient,
    "occlusion": occlusion,
    "weight": weight,
}


def _slopes(question: Question, outputs: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the gradient of the number with respect to ones for positions, which `outputs` is a function of."""
    real = question.real
    ones = torch.ones(1, len(real), device=question.model.device, requires_grad=True)
    # Where nothing is read of other positions, as without layers, nothing depends on them.
    number = question.value(outputs(ones).float()).sum() + 0 * ones.sum()
    (found,) = torch.autograd.grad(number, ones)
    return (found[0].float().cpu() * real).float()
