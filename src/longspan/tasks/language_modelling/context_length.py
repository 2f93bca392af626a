"""Relative effective context lengths of language models: `relative_context_lengths`."""

import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from longspan.errors import UserError


@dataclass(frozen=True)
class ContextLength:
    """Effective context length of a model relative to its group: see `relative_context_lengths`.

    Attributes:
        length: The relative effective context length in tokens.
        at_least: Whether it was still gaining at the largest length tried, which `length` then is.
        gains: For each context length but the largest, the relative gain of moving to the next one.
    """

    length: int
    at_least: bool
    gains: dict[int, float]


def relative_context_lengths(
    losses: Mapping[str, Mapping[int, np.ndarray]], *, share: float = 0.1, threshold: float = 0.01
) -> dict[str, ContextLength]:
    """Return the relative effective context length of each model of a group.

    With l_i(c, t) the loss of model i on token t from a context of c tokens, and c' the length tried after c:
        b(c, t) = min_i l_i(c, t);  T = the `share` of all tokens with the largest b(c, t)
        f_i(c, c') = mean over T of min(b(c, t), l_i(c', t));  g_i = (exp f_i(c, c) - exp f_i(c, c')) / exp f_i(c, c)
    and the result is the first c with g_i(c, c') < `threshold`. All models start from the best short-context loss of
    the group, on the tokens hardest to predict from there, so that a model that uses little context badly does not
    seem to gain more from a longer one.

    Source: Dai et al. 2019, section 4.3 and appendix C, https://arxiv.org/abs/1901.02860

    Args:
        losses: For each model and each context length the losses of the same tokens in nats, (t,).
        share: Share of the tokens compared, above 0 and at most 1.
        threshold: Least relative gain in perplexity that counts.

    Raises:
        UserError: Fewer than two lengths, models whose lengths or tokens differ, or an impossible share.
    """
    if not 0 < share <= 1:
        raise UserError(f"expected a share of the tokens above 0 and at most 1, got {share}; 0.1 is a tenth.")
    lengths = sorted(next(iter(losses.values()), {}))
    sizes = {len(row) for by_length in losses.values() for row in by_length.values()}
    if len(lengths) < 2 or len(sizes) != 1 or any(sorted(by_length) != lengths for by_length in losses.values()):
        raise UserError(
            f"expected losses of the same tokens at the same two or more context lengths from each model, got "
            f"lengths {', '.join(str(sorted(by_length)) for by_length in losses.values())} and {sorted(sizes)} tokens; "
            "score all models alike."
        )
    hardest = math.ceil(share * sizes.pop())
    gains: dict[str, dict[int, float]] = {name: {} for name in losses}
    for short, long in itertools.pairwise(lengths):
        best = np.min([by_length[short] for by_length in losses.values()], axis=0).astype(np.float64)
        tokens = np.argsort(-best, kind="stable")[:hardest]
        for name, by_length in losses.items():
            better = np.minimum(best, by_length[long])[tokens]
            gains[name][short] = -math.expm1(better.mean() - best[tokens].mean())
    found = {}
    for name, gain in gains.items():
        first = next((length for length in gain if gain[length] < threshold), None)
        found[name] = ContextLength(lengths[-1] if first is None else first, first is None, gain)
    return found
