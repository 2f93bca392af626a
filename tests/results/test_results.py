"""Results as JSON."""

import pytest

from longspan.results import Evaluation
from longspan.tasks.document_regression.scores import RegressionScores


def test_details_have_names_of_their_own() -> None:
    """Known failure: details by the name of a field were left out without a word."""
    scores = RegressionScores.from_dict(dict.fromkeys(RegressionScores.__dataclass_fields__, 0.5))
    evaluation = Evaluation("stars", "test", "stars.csv", scores, {"documents": 3}, {}, "runs/stars")
    found = evaluation.to_dict()
    assert (found["documents"], found["data"], found["loss"]) == (3, "stars.csv", 0.5)
    for taken in ("data", "loss"):
        clash = Evaluation("stars", "test", "stars.csv", scores, {taken: 3}, {}, "runs/stars")
        with pytest.raises(ValueError, match=f"names that Evaluation does not have, got '{taken}'; rename it"):
            clash.to_dict()
