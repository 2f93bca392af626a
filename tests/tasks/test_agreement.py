"""Drawn candidates and their agreement, against formulas written down here."""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
import torch

from longspan.tasks.base.seq2seq.search import EPSILON, Drawn, by_agreement


def f1(one: Sequence[object], other: Sequence[object]) -> float:
    # With one more gram that both have, as `by_agreement` says: none and none agree in full.
    both = (Counter(one) & Counter(other)).total() + 1
    return 2 * both / (len(one) + len(other) + 2)


def test_candidates_are_ordered_by_their_mean_f1_of_tokens_and_pairs() -> None:
    generator = np.random.default_rng(0)
    for _ in range(20):
        candidates: list[list[int]] = [generator.integers(0, 6, size).tolist() for size in generator.integers(0, 9, 7)]
        expected = [
            np.mean([f1(one, other) + f1([*pairwise(one)], [*pairwise(other)]) for other in candidates])
            for one in candidates
        ]
        found = by_agreement(candidates)
        assert sorted(found) == [*range(7)]
        known = {tuple(ids) for ids in candidates}
        first, again = found[: len(known)], found[len(known) :]
        assert {tuple(candidates[place]) for place in first} == known
        for part in (first, again):
            scores = [expected[place] for place in part]
            # float64 sums in another order.
            assert all(later <= earlier + 1e-12 for earlier, later in pairwise(scores))


@pytest.mark.parametrize("candidates", [[[]], [[], []], [[], [1]], [[1, 1, 1], [1]]])
def test_empty_and_repeated_candidates_have_an_order(candidates: list[list[int]]) -> None:
    assert by_agreement(candidates)[0] == 0


def test_tokens_are_drawn_by_their_probabilities_above_the_smallest() -> None:
    probabilities = torch.tensor([0.5, 0.3, 0.15, 0.04, 0.01])
    count = 4000
    drawn = Drawn([[7, 8]], count)
    left = drawn(torch.zeros(count, 1), probabilities.log().expand(count, -1))
    assert left.isfinite().sum(1).eq(1).all()
    found = left.argmax(1).bincount(minlength=5) / count
    assert probabilities[-1] < EPSILON
    assert found[-1] == 0
    expected = torch.tensor([*probabilities[:-1], 0]) / probabilities[:-1].sum()
    # Five standard errors of the largest.
    assert (found - expected).abs().max() < 5 * (0.25 / count) ** 0.5


def test_the_likeliest_token_is_drawn_where_all_are_unlikely() -> None:
    scores = torch.zeros(1, 1000)
    scores[0, 17] = 0.1
    for _ in range(5):
        assert Drawn([[1]], 1)(torch.zeros(1, 1), scores).argmax() == 17


def test_what_is_drawn_depends_on_the_source_and_its_candidate_alone() -> None:
    scores = torch.randn(1, 40, generator=torch.Generator().manual_seed(0)).expand(6, -1)
    before = torch.get_rng_state()

    def tokens(sources: list[list[int]], rows: torch.Tensor) -> list[list[int]]:
        drawn = Drawn(sources, 3)
        made = [drawn(torch.zeros(len(rows), 1), rows).argmax(1) for _ in range(20)]
        found: list[list[int]] = torch.stack(made, 1).tolist()
        return found

    together = tokens([[3, 4], [5]], scores)
    assert together[:3] == tokens([[3, 4]], scores[:3])
    assert together[3:] == tokens([[5]], scores[:3])
    assert len({tuple(row) for row in together}) == 6
    assert torch.get_rng_state().equal(before)
