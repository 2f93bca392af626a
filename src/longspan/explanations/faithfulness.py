"""Whether scores of positions say what the model reads: what deleting the highest ones changes, and keeping them alone.

Source: comprehensiveness and sufficiency of DeYoung et al. 2020, https://aclanthology.org/2020.acl-main.408, averaged
over shares of the positions.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from longspan.explanations.question import Question

#: Shares of the positions that are deleted, or kept.
SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)


@dataclass(frozen=True)
class Faithfulness:
    """Effects of deletions, each a mean over `SHARES`.

    Attributes:
        comprehensiveness: How much the share (`Question.share`) falls without the positions of the highest scores; more
            is better.
        sufficiency: How much it falls with these alone; less is better.
    """

    comprehensiveness: float
    sufficiency: float


def faithfulness(question: Question, scores: Float[Tensor, " t"]) -> Faithfulness:
    """Measure the scores of an example's positions. Cost: eleven forward passes."""
    real = question.real
    order = scores.masked_fill(~real, -math.inf).argsort(descending=True, stable=True)
    rank = torch.empty_like(order)
    rank[order] = torch.arange(len(order))
    highest = torch.stack([rank < math.ceil(share * int(real.sum())) for share in SHARES])
    kept = torch.cat((torch.ones_like(highest[:1]), ~highest, highest)) & real
    found = torch.cat([question.share(logits) for logits in question.without(kept)])
    without, alone = found[1:].split(len(SHARES))
    return Faithfulness(float(found[0] - without.mean()), float(found[0] - alone.mean()))


def by_chance(question: Question, draws: int = 5, seed: int = 0) -> Faithfulness:
    """Measure random scores, the mean of several."""
    random = torch.Generator().manual_seed(seed)
    found = [faithfulness(question, torch.rand(len(question.real), generator=random)) for _ in range(draws)]
    return Faithfulness(
        sum(one.comprehensiveness for one in found) / draws, sum(one.sufficiency for one in found) / draws
    )
