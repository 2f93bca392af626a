"""Baselines of recommendation on a few impressions whose ranking can be told by hand, and MIND's submission file."""

from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from news_folders import TITLES, behavior, settings, write_log, write_mind

from longspan.errors import UserError
from longspan.tasks.base.task import Recipe, baselines_in
from longspan.tasks.recommendation import baselines
from longspan.tasks.recommendation.prediction import prediction_line, ranks_of
from longspan.tasks.recommendation.recorded import Recorded, read_recorded
from longspan.tasks.recommendation.samples import Impressions

NAMES = baselines_in(baselines)


def folder(path: Path) -> Path:
    train = [
        behavior(1, time="11/09/2019 8:00:00 AM", shown="N1-1 N2-0"),
        behavior(2, time="11/08/2019 8:00:00 PM", shown="N1-1 N3-1 N2-0"),
        behavior(3, time="11/10/2019 8:00:00 AM", shown="N4-0 N3-1 N1-0"),
    ]
    write_mind(path / "train", train)
    write_mind(path / "dev", [behavior(1, history="N1", shown="N2-1 N3-0 N4-0 N5-0"), behavior(2, shown="N1-0")])
    write_mind(path / "test", [behavior(1, history="", shown="N5-1 N4-0")])
    return path


def scored(recorded: Recorded, name: str, split: str = "validation") -> list[float]:
    learned = NAMES[name]().scorer(recorded, Impressions(recorded.splits["train"]), settings())  # type: ignore[attr-defined]
    found: list[float] = learned.score(Impressions(recorded.splits[split])).tolist()
    return found


def test_scores_of_each(tmp_path: Path) -> None:
    recorded = read_recorded(settings(folder(tmp_path)))
    assert sorted(NAMES) == ["counts", "popular", "recent", "tfidf"]
    assert scored(recorded, "popular") == [0, 2, 0, 0, 2]
    two, three, four, five, one = scored(recorded, "recent")
    assert five > four > two == three == one
    two, three, four, five, one = scored(recorded, "tfidf")
    # The user read of a storm near the coast.
    assert two > max(three, four, five) > 0
    assert one == pytest.approx(1 / np.sqrt(2), abs=0.1)
    assert scored(recorded, "tfidf", "test") == [0, 0]


def test_tfidf_is_the_cosine_with_the_mean_of_what_was_clicked(tmp_path: Path) -> None:
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.metrics.pairwise import cosine_similarity

    recorded = read_recorded(settings(folder(tmp_path)))
    titles = TfidfVectorizer(sublinear_tf=True).fit_transform(TITLES.values()).toarray()
    expected = cosine_similarity(titles[[0]], titles[[1, 2, 3, 4]])[0].tolist()
    expected += cosine_similarity(titles[[0, 1]].mean(0, keepdims=True), titles[[0]])[0].tolist()
    assert scored(recorded, "tfidf") == pytest.approx(expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_fitted(tmp_path: Path, name: str) -> None:
    recipe = recipe_of(folder(tmp_path))
    found = NAMES[name]().fit(recipe)
    assert set(found.scores) == {"validation", "test"}
    assert found.scores["validation"].groups == 1
    assert found.parameters
    # As MIND's, whose labels only the leaderboard knows.
    write_mind(tmp_path / "test", [behavior(1, history="", shown="N5 N4")])
    assert set(NAMES[name]().fit(recipe).scores) == {"validation"}
    (tmp_path / "dev" / "behaviors.tsv").unlink()
    with pytest.raises(UserError, match="expected a validation split"):
        NAMES[name]().fit(recipe_of(tmp_path))


def recipe_of(path: Path) -> Recipe:
    """Return a recipe of which the baselines read only the data."""
    return Recipe("news", cast(Any, None), settings(path))


def test_without_times_what_is_further_down_is_later(tmp_path: Path) -> None:
    rows = [("u", "a", 1), ("u", "b", 1), ("u", "c", 0)]
    files = {
        split: write_log(tmp_path / f"{split}.csv", rows, "user,title,clicked") for split in ("train", "validation")
    }
    recorded = read_recorded(settings(**{split: str(path) for split, path in files.items()}))
    a, b, c = scored(recorded, "recent")
    assert a < b < c
    # No title has a word of two letters.
    assert scored(recorded, "tfidf") == [0, 0, 0]


def test_lines_of_a_submission() -> None:
    assert prediction_line("12", ranks_of([0.1, 0.9, -3.0, 0.9]).tolist()) == "12 [3,1,4,2]"
    assert prediction_line("3", [1]) == "3 [1]"
