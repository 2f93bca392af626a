"""Scores of rankings: how far what was clicked is ranked above what was shown and not clicked."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from longspan.scores import Scores, score


@dataclass(frozen=True)
class RecommendationScores(Scores):
    """How well candidates are ranked.

    AUC, MRR and nDCG are those of MIND's evaluation, means over groups in which something was clicked and something was
    not. Groups are impressions; where each impression has a single candidate, as in logs without times, they are users.

    Attributes:
        grouped_by: "impression" or "user".
        groups: How many groups were scored.
        left_out: How many others were not, as all or none of their candidates were clicked.
        auc: Share of the pairs of a clicked and another candidate that are in the right order; equal scores count half.
        mrr: Mean of 1 / rank over the clicked candidates. Of equal scores, those of earlier candidates come first.
        ndcg_5: nDCG of the first 5.
        ndcg_10: nDCG of the first 10.
        pooled_auc: AUC over the pairs of all candidates together, whoever they were shown to.
        coverage: Share of the catalogue that is among the first 10 of any group.
        novelty: Mean self-information, in bits, of the first 10 of each group: -log2 of an item's share of the clicks
            in training, where each item has one click more than it had.
    """

    grouped_by: Literal["impression", "user"]
    groups: int
    left_out: int
    auc: float = score("AUC", higher_is_better=True, share=True, headline=True)
    mrr: float = score("MRR", higher_is_better=True, share=True)
    ndcg_5: float = score("nDCG@5", higher_is_better=True, share=True)
    ndcg_10: float = score("nDCG@10", higher_is_better=True, share=True)
    pooled_auc: float = score("pooled AUC", higher_is_better=True, share=True)
    coverage: float = score("coverage", higher_is_better=True, share=True)
    novelty: float = score("novelty", higher_is_better=True)


def recommendation_scores(
    logits: np.ndarray,
    clicked: np.ndarray,
    offsets: np.ndarray,
    *,
    users: np.ndarray,
    items: np.ndarray,
    popularity: np.ndarray,
) -> RecommendationScores:
    """Score candidates, those of impression `i` being `offsets[i]` to `offsets[i + 1]`.

    Args:
        logits: Higher where a click is likelier, `(n,)`.
        clicked: Which were clicked, `(n,)` 1 or 0.
        offsets: `(impressions + 1,)`, from 0 to n, as `longspan.tasks.recommendation.reading.ragged` returns them.
        users: The user of each impression, `(impressions,)`, as numbers or names.
        items: The catalogue number of each candidate, `(n,)`.
        popularity: How often each item of the catalogue was clicked in training, `(catalogue,)`.

    Raises:
        UserError: No group has both a clicked and another candidate, or logits are not finite.
    """
    raise NotImplementedError


def auc_interval(
    logits: np.ndarray,
    clicked: np.ndarray,
    offsets: np.ndarray,
    *,
    users: np.ndarray,
    share: float = 0.95,
    draws: int = 1000,
    seed: int = 0,
) -> tuple[float, float]:
    """Return a bootstrap interval of `RecommendationScores.auc`: groups are drawn with replacement.

    Args:
        logits: As above.
        clicked: As above.
        offsets: As above.
        users: As above.
        share: How much of the draws' means lies in it; the rest is halved.
        draws: How many draws.
        seed: Their seed.
    """
    raise NotImplementedError
