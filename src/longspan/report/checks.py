"""Results of `longspan check` for people."""

import textwrap
from collections.abc import Mapping, Sequence

from longspan.report import table
from longspan.report.wrapping import WIDTH
from longspan.results.check import Checked, ModelReport


def checks_summary(reports: Sequence[ModelReport], style: str = "simple") -> str:
    """Summary that `longspan check` prints: a table for one model, or the deviations of several, and failures."""
    if len(reports) == 1:
        return "\n\n".join([_table(reports[0], style), *_outcome(reports[0])])
    return "\n\n".join([deviations(reports, style), *(told for report in reports for told in _outcome(report))])


def checks_list(promises: Mapping[str, str], width: int = WIDTH) -> str:
    """List that `longspan check --list` prints: the checks, each with its promise."""
    longest = max(map(len, promises)) + 2
    return "\n".join(
        textwrap.fill(promise, width, initial_indent=name.ljust(longest), subsequent_indent=" " * longest)
        for name, promise in promises.items()
    )


def deviations(reports: Sequence[ModelReport], style: str = "simple") -> str:
    """Return a table with a row for each model and a column for each check."""
    names = list(dict.fromkeys(check.check for report in reports for check in report.checks))
    rows = [[report.model, *(cell(report.of(name)) for name in names)] for report in reports]
    return table(["model", *(name.replace("-", " ") for name in names)], rows, style)


def cell(check: Checked | None) -> str:
    """Return a check in a few characters: its deviation, and a word unless it passed."""
    if check is None or check.outcome == "not applicable":
        return "-"
    size = "" if check.deviation is None else f"{check.deviation:.0e}" if check.deviation else "0"
    size = "(not finite)" if size == "inf" else size
    if check.outcome == "passed":
        return size or "ok"
    if check.outcome == "failed":
        return f"FAILED {size or '(error)'}"
    return check.outcome


def _table(report: ModelReport, style: str) -> str:
    rows = [
        [
            check.check,
            check.outcome,
            "-" if check.deviation is None else f"{check.deviation:.1e}",
            "-" if check.tolerance is None else f"{check.tolerance:.0e}",
            check.where,
        ]
        for check in report.checks
    ]
    return table(["check", "outcome", "deviation", "tolerance", "where it is largest"], rows, style)


def _outcome(report: ModelReport) -> list[str]:
    """Say in a sentence how many checks failed, and give the promise and the reason of each that did not pass."""
    lines = [
        f"{check.check} {check.outcome}: {_reason(check)}"
        for check in report.checks
        if check.outcome not in ("passed", "not applicable")
    ]
    applied = [check for check in report.checks if check.outcome != "not applicable"]
    count = f"{len(report.failed)} of {len(applied)} checks failed" if report.failed else "no check failed"
    versions = ", ".join(f"{name} {version}" for name, version in report.versions.items())
    head = f"{report.model} ({report.architecture}, {report.parameters:,} parameters; {versions}): {count}."
    return ["\n".join(textwrap.fill(line, WIDTH, subsequent_indent="  ") for line in (head, *lines))]


def _reason(check: Checked) -> str:
    if check.outcome == "failed":
        return f"{check.promise} {f'But: {check.reason}' if check.reason else f'Deviation: {check.deviation:.1e}.'}"
    return check.reason
