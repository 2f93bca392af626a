"""A report for a terminal: `report_summary`."""

from longspan.report import count, number, table
from longspan.report.run_page import ComparisonReport, RunReport
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes, excerpt

#: Words of each class that are printed.
_WORDS = 8


def report_summary(found: RunReport | ComparisonReport) -> str:
    """Return what is missing, the words that speak for each class and the worst mistakes, with a line after each."""
    if isinstance(found, ComparisonReport):
        return ""
    parts = list(found.notes)
    if found.words is not None:
        rows = (
            [label, ", ".join(word.text for word in words[:_WORDS])] for label, words in found.words.by_class.items()
        )
        parts.append(table(["class", "words that speak for it"], rows))
    if found.evaluation is not None:
        parts += mistakes_summary(found.evaluation)
    return "".join(f"{part}\n\n" for part in parts)


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
