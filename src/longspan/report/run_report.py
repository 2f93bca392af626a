"""A report for a terminal: `report_summary`."""

from longspan.report import table
from longspan.report.mistakes import mistakes_summary
from longspan.results.run_report import ComparisonReport, RunReport

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
