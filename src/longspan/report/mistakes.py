"""What a model gets wrong, for a terminal: `mistakes_summary`."""

from longspan.report import count, number, table
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes, excerpt

#: Mistakes that are printed, and characters of each cell.
_ROWS, _CELL = 8, 40


def mistakes_summary(evaluation: Evaluation) -> list[str]:
    """Return what `longspan evaluate` prints of the worst mistakes, and of labels that are likely wrong."""
    found = evaluation.mistakes
    if found.reason:
        return [found.reason]
    parts = [_listed("Worst mistakes", found, "expected", "answer")] if found.worst else []
    issues = evaluation.label_issues
    if issues is not None and issues.worst:
        parts.append(_listed("Labels that are likely wrong", issues, "label", "more likely"))
    return parts


def _listed(title: str, found: Mistakes, expected: str, said: str) -> str:
    shown = found.worst[:_ROWS]
    rows = (
        [excerpt(one.where, 2 * _CELL), excerpt(one.expected, _CELL), excerpt(one.said, _CELL), number(one.score)]
        for one in shown
    )
    lead = f"{title} ({count(len(shown))} of {count(found.count)}):"
    return f"{lead}\n\n{table(['where', expected, said, found.measure], rows)}"
