"""The generator of data with known preferences: its files are MIND's, and their best AUC can be had from them."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from news_folders import settings

from longspan.tasks.recommendation.recorded import Recorded, ragged, read_recorded
from longspan.tasks.recommendation.scores import recommendation_scores


def auc_of_topics(recorded: Recorded, place: int | None) -> float:
    """Return the AUC of candidates ranked by how often their topic is in the history, or whether it is that of one
    click."""
    topics = recorded.catalogue["category"][:]
    rows = recorded.splits["validation"]
    scores = []
    for row in rows:
        past = row["history"] if place is None else [row["history"][place]]
        counts = Counter(topics[item] for item in past)
        scores += [float(counts[topics[item]]) for item in row["candidates"]]
    shown = ragged(rows, "candidates")
    return recommendation_scores(
        np.array(scores),
        ragged(rows, "clicked").values,
        shown.offsets,
        users=np.arange(len(rows)),
        items=shown.values,
        popularity=recorded.popularity(),
    ).auc


@pytest.mark.parametrize("distance", [0, 30])
def test_the_best_auc_can_be_had(
    tmp_path: Path, run_benchmark: Callable[..., None], distance: int, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--out", str(tmp_path), "--users", "100", "--news", "300", "--distance", str(distance)]
    run_benchmark("recommendation.py", *given)
    assert "best possible" in capsys.readouterr().out
    best = json.loads((tmp_path / "best.json").read_text())["result"]["dev"]["auc"]
    recorded = read_recorded(settings(tmp_path, history=0, entity_vectors=str(tmp_path)))
    found = auc_of_topics(recorded, -distance if distance else None)
    if distance:
        # That click's topic is all that the probabilities depend on.
        assert found == pytest.approx(best)
        assert 0.45 < auc_of_topics(recorded, -distance + 1) < 0.55
    else:
        # Fifty clicks tell of the user's interests nearly all.
        assert best - 0.03 < found <= best
    assert 0.65 < best < 0.9
    users, old = set(recorded.users()), {item for row in recorded.splits["train"] for item in row["candidates"]}
    assert any(row["user"] not in users for row in recorded.splits["validation"])
    assert any(item not in old for row in recorded.splits["validation"] for item in row["candidates"])
    assert len({entity for row in recorded.catalogue for entity in row["entities"]}) > 50
