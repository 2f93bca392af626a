"""The turns that a trained run of the task `evidence` finds: `Evidence`."""

from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.tasks.base.task import Run, RunBaseline
from longspan.tasks.summarisation.baselines._extraction import Ranking
from longspan.tasks.summarisation.reading import LINES
from longspan.tasks.summarisation.scores import SummaryScores


class Evidence(Ranking, RunBaseline[SummaryScores]):
    """The lines that a trained run of the task `evidence` finds for the question; without a question, the first ones.

    Validation chooses the number of words from which a line counts.
    """

    example: ClassVar[str] = "runs/evidence"
    settings = tuple({"parts": LINES, "shortest": shortest, "spread": 0.0} for shortest in (1, 10, 20, 30))

    def __init__(self, model: str, run: Run) -> None:
        if run.task.name != "evidence":
            raise UserError(
                f"the baseline 'evidence' expected a run of the task 'evidence', got {model!r} of {run.task.name!r}; "
                "name another."
            )
        super().__init__(model, run)

    def scores(self, parts: Sequence[str], questions: Sequence[str]) -> np.ndarray:
        found = np.zeros((len(questions), len(parts)))
        asked = [number for number, question in enumerate(questions) if question]
        if not asked:
            return found
        row = Row({"parts": list(parts), "questions": [questions[number] for number in asked]}, "a document")
        (made,) = self.run.task.predict(self.run, [row])
        if made.error is not None:
            raise UserError(
                f"the baseline 'evidence' expected documents that its run can read, got one with: {made.error}; name "
                "another run."
            )
        for number, one in zip(asked, made.to_dict()["questions"], strict=True):
            for part in one["parts"]:
                found[number, part["part"]] = part["score"]
        return found
