"""Predictions of network and counts of a language model with a wide part, alone and together."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from longspan.models.wide.language import Mixture
from longspan.results.parts import Parts
from longspan.tasks.base.mixing import ratio_of_sums
from longspan.tasks.language_modelling.scores import LanguageScores

#: Neighbouring tokens are not independent: excerpts of so many tokens are drawn together.
_EXCERPT = 512
#: Number of losses that `losses_of_parts` returns for each target: of both parts together, the network, and the counts.
LOSSES = 3


def losses_of_parts(output: Any) -> Tensor:
    """Return the losses of a mixture's output, `(b, t, LOSSES)`, for `likelihood.token_outputs`."""
    return torch.cat((output.losses.unsqueeze(2).to(output.parts.dtype), -output.parts[..., :2]), 2)


def losses_without_parts(mixture: Mixture, output: Any) -> Tensor:
    """Return the `losses_of_parts`, then those without network, counts or caches: `(b, t, LOSSES + 2)`, with caches 3.

    The weights of the other parts grow by the same factor.
    """
    shares = mixture.gate(output.evidence).to(output.parts.dtype)
    kinds = [part.partition(" ")[0] for part in mixture.parts]
    losses = [losses_of_parts(output)]
    for kind in dict.fromkeys(kinds):
        left = [number for number, other in enumerate(kinds) if other != kind]
        weights = shares[..., left]
        losses.append((weights.logsumexp(2) - (weights + output.parts[..., left]).logsumexp(2)).unsqueeze(2))
    return torch.cat(losses, 2)


def losses_without(mixture: Mixture, losses: Sequence[np.ndarray]) -> dict[str, float]:
    """Mean loss without each kind of part, in nats, from the `losses_without_parts` of each document."""
    kinds = dict.fromkeys(part.partition(" ")[0] for part in mixture.parts)
    means = np.concatenate([row[:, LOSSES:] for row in losses]).mean(0, dtype=np.float64)
    return dict(zip(kinds, means.tolist(), strict=True))


def parts_of(losses: Sequence[np.ndarray]) -> Parts:
    """Compare the parts of a model by the losses `(n, LOSSES)`, or more, of the targets of each document."""
    rows = [np.add.reduceat(row, starts, 0, np.float64) for row in losses if len(starts := _starts(len(row)))]
    counts = np.concatenate([np.diff(_starts(len(row)), append=len(row)) for row in losses])
    both, network, counted, *_ = np.concatenate(rows).T
    sums = [torch.from_numpy(np.stack((each, counts), 1)) for each in (counted, network, both)]
    return ratio_of_sums(LanguageScores, "loss", sums)


def _starts(length: int) -> np.ndarray:
    return np.arange(0, length, _EXCERPT)
