"""Minimum Bayes risk decoding: draw several targets of a source, and take the one that agrees best with the others.

See Kumar & Byrne 2004 (https://aclanthology.org/N04-1022) for the decision, and Eikema & Aziz 2022
(https://arxiv.org/abs/2108.04718) for drawn candidates.
"""

import math
import zlib
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor
from transformers import LogitsProcessor

#: A token with a lower probability than this is never drawn, unless it is the likeliest: epsilon sampling, Hewitt
#: et al. 2022 (https://arxiv.org/abs/2210.15191). Label smoothing spreads a tenth of the probability over all tokens.
EPSILON = 0.02
_DRAWABLE = math.floor(1 / EPSILON)


class Drawn(LogitsProcessor):
    """Leaves one token of each row, drawn by its probability, so that greedy search samples.

    What is drawn depends on the source and the number of its candidate only, not on what else is in the batch, and no
    global random state is read.

    Args:
        sources: b lists of token ids.
        candidates: Number of candidates of each; the rows of logits are b·candidates, those of the first source first.
    """

    def __init__(self, sources: Sequence[Sequence[int]], candidates: int) -> None:
        self.generators = [
            torch.Generator().manual_seed(zlib.crc32(np.asarray(ids, dtype=np.int64).tobytes()) * candidates + number)
            for ids in sources
            for number in range(candidates)
        ]

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        likely, tokens = scores.float().log_softmax(-1).topk(min(_DRAWABLE, scores.shape[-1]))
        likely[:, 1:] = likely[:, 1:].masked_fill(likely[:, 1:] < math.log(EPSILON), -torch.inf)
        # The first of waiting times with these rates.
        waiting = torch.stack([torch.empty(likely.shape[1]).exponential_(generator=own) for own in self.generators])
        taken = tokens.gather(1, (likely - waiting.to(likely.device).log()).argmax(-1, keepdim=True))
        return torch.full_like(scores, -torch.inf).scatter_(1, taken, 0)


def by_agreement(candidates: Sequence[Sequence[int]]) -> list[int]:
    """Return the places of candidates in the order of their mean agreement with all, the best first.

    Agreement is the mean of two F1: that of tokens and that of pairs of neighbouring tokens, which may be repeated. Two
    candidates without any agree in full. Of candidates that are the same, all but the first come last.

    Args:
        candidates: n lists of token ids.
    """
    agreed = np.zeros(len(candidates))
    for grams in (candidates, [[*pairwise(ids)] for ids in candidates]):
        known: dict[object, int] = {}
        rows = [[known.setdefault(gram, len(known)) for gram in of_one] for of_one in grams]
        counts = np.zeros((len(rows), len(known) + 1), dtype=np.int32)
        for count, row in zip(counts, rows, strict=True):
            np.add.at(count, row, 1)
        # One more gram, which all have: so that F1 is defined without any.
        counts[:, -1] = 1
        totals = counts.sum(1)
        for place, count in enumerate(counts):
            agreed[place] += (2 * np.minimum(counts, count).sum(1) / (totals + totals[place])).mean()
    first = {tuple(ids): place for place, ids in reversed([*enumerate(candidates)])}
    repeated = sorted({*range(len(candidates))} - {*first.values()})
    return [*sorted(first.values(), key=lambda place: (-agreed[place], place)), *repeated]
