"""Results of question answering: tables, wrong answers, and what the model card says."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from longspan.report import count, scores_table, share, table
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes
from longspan.tasks.base.task import Task
from longspan.tasks.question_answering.answers import Answered
from longspan.tasks.question_answering.scores import AnswerScores, f1

_COLUMNS = {
    "questions": "questions",
    "unanswered": "without an answer",
    "tokens": "tokens",
    "median_length": "median length",
    "longest": "longest",
    "windows": "windows",
}


def data_table(data: Mapping[str, Any], style: str = "simple") -> str:
    """Return the table of splits."""
    rows = ([name, *(count(row[key]) for key in _COLUMNS)] for name, row in data.items() if "questions" in row)
    return table(["split", *_COLUMNS.values()], rows, style)


def mistakes(found: Sequence[Answered], threshold: float | None) -> Mistakes:
    """Return the answers that share no word with a right one, those that the model was surest of first."""
    answers = [one.answer(threshold) for one in found]
    scores = []
    for one, given in zip(found, answers, strict=True):
        probabilities, none = one.probabilities(threshold)
        sure = probabilities[0] if given else none if threshold is not None else 1.0
        scores.append(sure if f1(given, one.expected) == 0 else np.nan)

    def tell(number: int) -> dict[str, str]:
        one = found[number]
        expected = " / ".join(dict.fromkeys(one.expected)) or "(none)"
        return {"where": one.where, "expected": expected, "said": answers[number] or "(none)", "text": one.question}

    return Mistakes.ranked("probability of the answer", scores, tell)


def evaluation_report(task: Task, evaluation: Evaluation[AnswerScores]) -> str:
    """Report that `longspan evaluate` prints."""
    scores, split = evaluation.scores, evaluation.split
    parts = [task.data_table({split: evaluation.details["data_table"]}), scores_table({split: scores})]
    if scores.kinds:
        kinds = (
            [f"questions with {'an' if name == 'answer' else ''} {name}".replace("  ", " "), count(row["questions"]),
             share(row["f1"]), share(row["exact_match"])]
            for name, row in scores.kinds.items()
        )  # fmt: skip
        parts.append(table(["kind", "questions", "F1", "exact match"], kinds))
    parts.append(f"written to {evaluation.folder}")
    return "\n\n".join(parts)
