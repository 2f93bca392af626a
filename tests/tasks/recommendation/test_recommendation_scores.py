"""Scores of rankings against scikit-learn and against MIND's definitions, written out impression by impression."""

import math

import numpy as np
import pytest
from sklearn.metrics import ndcg_score, roc_auc_score

from longspan.errors import UserError
from longspan.tasks.recommendation.scores import RecommendationScores, auc_interval, recommendation_scores


class Case:
    """Random impressions, some of one kind of candidates only; `grid` makes for equal scores."""

    def __init__(self, seed: int, sizes: list[int], grid: int = 0, users: int = 7, catalogue: int = 40) -> None:
        random = np.random.default_rng(seed)
        self.offsets = np.cumsum([0, *sizes])
        total = int(self.offsets[-1])
        values = random.normal(size=total)
        self.logits: np.ndarray = (np.round(values * grid) / grid if grid else values).astype(np.float32)
        self.clicked: np.ndarray = (random.random(total) < 0.3).astype(np.int8)
        self.items = random.integers(catalogue, size=total)
        self.popularity = random.integers(9, size=catalogue)
        self.users = random.integers(users, size=len(sizes))

    def scores(self) -> RecommendationScores:
        return recommendation_scores(
            self.logits,
            self.clicked,
            self.offsets,
            users=self.users,
            items=self.items,
            popularity=self.popularity,
        )

    def groups(self) -> list[np.ndarray]:
        places = np.arange(self.offsets[-1])
        if np.diff(self.offsets).max() > 1:
            return np.split(places, self.offsets[1:-1])
        return [places[self.users == user] for user in np.unique(self.users)]


def naive(case: Case) -> dict[str, float]:
    aucs, mrrs, five, ten, bits, top = [], [], [], [], [], set()
    share = (case.popularity + 1) / (case.popularity + 1).sum()
    for places in case.groups():
        order = sorted(places, key=lambda place: -case.logits[place])
        top |= {int(case.items[place]) for place in order[:10]}
        bits.append(np.mean([-math.log2(share[case.items[place]]) for place in order[:10]]))
        clicked, logits = case.clicked[places], case.logits[places]
        if not 0 < clicked.sum() < len(clicked):
            continue
        aucs.append(roc_auc_score(clicked, logits))
        worth = 0.0
        for place in places[clicked == 1]:
            # The mean over the ranks that its score may have.
            above, equal = (logits > case.logits[place]).sum(), (logits == case.logits[place]).sum()
            worth += np.mean([1 / (above + rank) for rank in range(1, equal + 1)])
        mrrs.append(worth / clicked.sum())
        five.append(ndcg_score([clicked], [logits], k=5))
        ten.append(ndcg_score([clicked], [logits], k=10))
    return {
        "auc": float(np.mean(aucs)),
        "mrr": float(np.mean(mrrs)),
        "ndcg_5": float(np.mean(five)),
        "ndcg_10": float(np.mean(ten)),
        "pooled_auc": float(roc_auc_score(case.clicked, case.logits)),
        "coverage": len(top) / len(case.popularity),
        "novelty": float(np.mean(bits)),
    }


@pytest.mark.parametrize("grid", [0, 2])
def test_scores_are_those_of_each_impression(grid: int) -> None:
    case = Case(3, [1, 5, 30, 2, 2, 12, 1, 40, 3, 17, 9, 11], grid)
    found = case.scores()
    # Sums in another order, of a hundred numbers.
    assert found.numbers() == pytest.approx(naive(case), rel=1e-12)
    kinds = [set(case.clicked[places].tolist()) for places in case.groups()]
    assert (found.grouped_by, found.groups) == ("impression", sum(len(kind) == 2 for kind in kinds))
    assert found.left_out == len(kinds) - found.groups > 0


def test_impressions_of_one_candidate_are_compared_within_users() -> None:
    case = Case(5, [1] * 60, grid=3)
    found = case.scores()
    assert found.grouped_by == "user"
    assert found.numbers() == pytest.approx(naive(case), rel=1e-12)
    named = Case(5, [1] * 60, grid=3)
    named.users = np.array([f"user {user}" for user in case.users])
    assert named.scores() == found


def test_the_order_in_which_candidates_are_listed_is_worth_nothing() -> None:
    case = Case(0, [4])
    case.logits = np.zeros(4, dtype=np.float32)
    for clicked in ([1, 1, 0, 0], [0, 0, 1, 1]):
        case.clicked = np.array(clicked, dtype=np.int8)
        found = case.scores()
        assert found.auc == found.pooled_auc == 0.5
        assert found.mrr == pytest.approx((1 + 1 / 2 + 1 / 3 + 1 / 4) / 4)
    case.logits = np.array([0.0, 1.0, -0.0, -1.0], dtype=np.float32)
    assert case.scores().auc == 0.5 / 4


def test_neighbouring_numbers_of_float32_are_told_apart() -> None:
    case = Case(0, [2])
    one = np.float32(1)
    case.logits = np.array([one, np.nextafter(one, np.float32(2))])
    case.clicked = np.array([0, 1], dtype=np.int8)
    assert case.scores().auc == 1


def test_nothing_to_score() -> None:
    case = Case(0, [3, 4])
    case.clicked[:] = 0
    with pytest.raises(UserError, match="expected an impression with"):
        case.scores()
    case = Case(0, [3, 4])
    case.logits[2] = np.nan
    with pytest.raises(UserError, match="expected finite outputs of the model"):
        case.scores()


def test_bootstrap_interval() -> None:
    case = Case(1, [8] * 150)
    auc = case.scores().auc

    def interval(seed: int) -> tuple[float, float]:
        return auc_interval(case.logits, case.clicked, case.offsets, users=case.users, draws=200, seed=seed)

    low, high = interval(0)
    assert low < auc < high
    assert interval(0) == (low, high) != interval(1)
    # The mean of 150 independent numbers: twice 1.96 standard errors wide, to the precision of 200 draws.
    each = [
        roc_auc_score(case.clicked[places], case.logits[places])
        for places in case.groups()
        if 0 < case.clicked[places].sum() < 8
    ]
    expected = 2 * 1.96 * np.std(each) / math.sqrt(len(each))
    assert high - low == pytest.approx(expected, rel=0.25)
