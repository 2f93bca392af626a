"""Options of recommendation: what they refuse."""

import pytest

from longspan.errors import UserError
from longspan.tasks.recommendation.options import RecommendationData


@pytest.mark.parametrize("name", ["history", "max_abstract_length", "max_entities"])
def test_what_must_not_be_negative(name: str) -> None:
    assert getattr(RecommendationData(**{name: 0}), name) == 0  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"data.{name} must be at least 0, got -1"):
        RecommendationData(**{name: -1})  # type: ignore[arg-type]


def test_at_least_one_negative() -> None:
    with pytest.raises(UserError, match=r"data.negatives must be at least 1, got 0; 4 is usual"):
        RecommendationData(negatives=0)


def test_settings_of_all_tasks_are_checked_too() -> None:
    with pytest.raises(UserError, match=r"either data.path or data.train"):
        RecommendationData(path="a", train="b")
