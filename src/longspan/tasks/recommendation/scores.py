"""Scores of rankings: how far what was clicked is ranked above what was shown and not clicked."""

from dataclasses import dataclass
from typing import Literal

import numpy as np

from longspan.errors import UserError
from longspan.results.scores import Scores, score

#: Number of items in a list of recommendations.
_LONGEST_LIST = 10


@dataclass(frozen=True)
class RecommendationScores(Scores):
    """Scores of ranked candidates.

    AUC, MRR and nDCG are those of MIND's evaluation, means over groups in which something was clicked and something was
    not. Groups are impressions; where each impression has a single candidate, as in logs without times, they are users.
    Equal scores count as any order of them does on average, so that the order in which data list candidates is worth
    nothing.

    Attributes:
        grouped_by: "impression" or "user".
        groups: Number of groups that were scored.
        left_out: Number of others that were not, as all or none of their candidates were clicked.
        auc: Share of the pairs of a clicked and another candidate that are in the right order.
        mrr: Mean of 1 / rank over the clicked candidates.
        ndcg_5: nDCG of the first 5.
        ndcg_10: nDCG of the first 10.
        pooled_auc: AUC over the pairs of all candidates together, whoever they were shown to.
        coverage: Share of the catalogue that is among the first 10 of any group.
        novelty: Mean self-information, in bits, of the first 10 of each group: -log2 of an item's share of the clicks
            in training. Each item has one click more than it had.
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
        offsets: `(impressions + 1,)`, from 0 to n, as `longspan.tasks.recommendation.ragged.ragged` returns them.
        users: The user of each impression, `(impressions,)`, as numbers or names.
        items: The catalogue number of each candidate, `(n,)`.
        popularity: How often each item of the catalogue was clicked in training, `(catalogue,)`.

    Raises:
        UserError: No group has both a clicked and another candidate, or logits are not finite.
    """
    ranked = _ranked(logits, clicked, offsets, users)
    first = ranked.rank <= _LONGEST_LIST
    shown = items[ranked.order][first]
    shares = (popularity + 1) / (popularity.sum() + len(popularity))
    bits = _sums(ranked.group[first], -np.log2(shares[shown]), ranked.groups)
    scored, positives = ranked.scored, ranked.positives
    reciprocal = ranked.gains(1 / ranked.rank)

    def ndcg(k: int) -> float:
        gained = ranked.gains(np.where(ranked.rank <= k, 1 / np.log2(ranked.rank + 1), 0.0))
        ideal = np.cumsum(1 / np.log2(np.arange(2, k + 2)))
        return float((gained[scored] / ideal[np.minimum(positives[scored], k) - 1]).mean())

    return RecommendationScores(
        grouped_by=ranked.grouped_by,
        groups=int(scored.sum()),
        left_out=int((~scored).sum()),
        auc=float(ranked.auc.mean()),
        mrr=float((reciprocal[scored] / positives[scored]).mean()),
        ndcg_5=ndcg(5),
        ndcg_10=ndcg(_LONGEST_LIST),
        pooled_auc=_pooled_auc(logits, clicked),
        coverage=len(np.unique(shown)) / len(popularity),
        novelty=float((bits / np.minimum(ranked.sizes, _LONGEST_LIST)).mean()),
    )


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
        logits: As for `recommendation_scores`.
        clicked: As above.
        offsets: As above.
        users: As above.
        share: How much of the draws' means lies in it; the rest is halved.
        draws: Number of draws.
        seed: Their seed.

    Raises:
        UserError: As above.
    """
    values = _ranked(logits, clicked, offsets, users).auc
    random = np.random.default_rng(seed)
    means = [values[random.integers(len(values), size=len(values))].mean() for _ in range(draws)]
    low, high = np.quantile(means, [(1 - share) / 2, (1 + share) / 2])
    return float(low), float(high)


def group_aucs(logits: np.ndarray, clicked: np.ndarray, offsets: np.ndarray, *, users: np.ndarray) -> np.ndarray:
    """Return the AUC of each group that is scored, `(groups,)`, whose mean is `RecommendationScores.auc`.

    Raises:
        UserError: As above.
    """
    return _ranked(logits, clicked, offsets, users).auc


def groups_of(offsets: np.ndarray, users: np.ndarray) -> np.ndarray:
    """Group of each candidate, `(n,)`, from 0; see `grouped_by`."""
    group: np.ndarray = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    return np.unique(users, return_inverse=True)[1][group] if grouped_by(offsets) == "user" else group


def grouped_by(offsets: np.ndarray) -> Literal["impression", "user"]:
    """Return by what candidates are grouped: by users where no impression has two candidates to compare."""
    return "impression" if (np.diff(offsets) > 1).any() else "user"


@dataclass(frozen=True)
class _Ranked:
    """Candidates group by group, the highest score first.

    Attributes:
        order: The candidate at each place, `(n,)`.
        group: Its group, from 0, and its `rank` there, from 1.
        rank: `(n,)`.
        clicked: Whether it was clicked, `(n,)`.
        sizes: Number of candidates of each group, `(groups,)`, and of its `positives`, clicked ones.
        positives: `(groups,)`.
        scored: Which groups have both kinds, `(groups,)`.
        tie: Which run of equal scores in one group it is in, `(n,)`.
        auc: The AUC of these, `(scored groups,)`.
        grouped_by: Kind of groups.
    """

    order: np.ndarray
    group: np.ndarray
    rank: np.ndarray
    clicked: np.ndarray
    sizes: np.ndarray
    positives: np.ndarray
    scored: np.ndarray
    tie: np.ndarray
    auc: np.ndarray
    grouped_by: Literal["impression", "user"]

    @property
    def groups(self) -> int:
        """Number of groups."""
        return len(self.sizes)

    def gains(self, worth: np.ndarray) -> np.ndarray:
        """Gains of the clicked candidates of each group by their ranks, `(groups,)`."""
        return _sums(self.group, self.clicked * _shared(worth, self.tie), self.groups)


def _ranked(logits: np.ndarray, clicked: np.ndarray, offsets: np.ndarray, users: np.ndarray) -> _Ranked:
    """Rank the candidates of each group; of equal scores, earlier ones come first.

    Raises:
        UserError: No group has both a clicked and another candidate, or logits are not finite.
    """
    if not np.isfinite(logits).all():
        raise UserError(
            "expected finite outputs of the model, got some that are not, as after a training run that diverged; lower "
            "training.learning_rate."
        )
    kind, group = grouped_by(offsets), groups_of(offsets, users)
    groups = int(group.max(initial=-1)) + 1 if kind == "user" else len(offsets) - 1
    # One number per candidate orders groups, scores, and by a stable sort places: the levels are those of all scores.
    levels = np.unique(-logits, return_inverse=True)[1]
    key = group * (int(levels.max(initial=0)) + 1) + levels
    order = np.argsort(key, kind="stable")
    group, key, hits = group[order], key[order], clicked[order].astype(bool)
    sizes = np.bincount(group, minlength=groups)
    begins = np.cumsum(sizes) - sizes
    rank = np.arange(1, len(group) + 1) - begins[group]
    positives = np.bincount(group[hits], minlength=groups)
    scored = (positives > 0) & (positives < sizes)
    if not scored.any():
        raise UserError(
            f"expected {'an impression' if kind == 'impression' else 'a user'} with a candidate that was clicked and "
            "one that was not to score, got none; choose data with both."
        )
    tie = np.cumsum(np.diff(key, prepend=-1) != 0) - 1
    # Mann and Whitney 1947.
    below = _sums(group[hits], sizes[group[hits]] + 1 - _shared(rank, tie)[hits], groups)[scored]
    above, all_of = positives[scored], sizes[scored]
    auc = (below - above * (above + 1) / 2) / (above * (all_of - above))
    return _Ranked(order, group, rank, hits, sizes, positives, scored, tie, auc, kind)


def _shared(values: np.ndarray, tie: np.ndarray) -> np.ndarray:
    """Return for each place the mean of the values in its run of equal scores, `(n,)`."""
    found: np.ndarray = (np.bincount(tie, weights=values) / np.bincount(tie))[tie]
    return found


def _pooled_auc(logits: np.ndarray, clicked: np.ndarray) -> float:
    """Return the AUC of all candidates, some of which were clicked and some not."""
    levels = np.unique(logits, return_inverse=True)[1]
    hits = np.bincount(levels[clicked.astype(bool)], minlength=levels.max() + 1)
    others = np.bincount(levels) - hits
    right = (hits * (np.cumsum(others) - others / 2)).sum()
    return float(right / (hits.sum() * others.sum()))


def _sums(group: np.ndarray, values: np.ndarray, groups: int) -> np.ndarray:
    """Return the sum of the values in each group, `(groups,)`."""
    found: np.ndarray = np.bincount(group, weights=values, minlength=groups)
    return found
