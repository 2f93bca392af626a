"""Write a report of a run or of a comparison: `write_report`."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from longspan.errors import UserError
from longspan.report.run_report import NAME, ComparisonReport, RunReport
from longspan.results.outputs import check_file
from longspan.tasks.base.task import Run
from longspan.verbs import reporting
from longspan.verbs.evaluate import scored
from longspan.verbs.report_words import explained_words, read_rows, weighed_words
from longspan.verbs.runs import as_run


def write_report(
    run: Run | Path | str, out: Path | str | None = None, *, allow_imports: Iterable[str] = ()
) -> RunReport | ComparisonReport:
    """Write a report of a run, or of a comparison, as one page of HTML.

    The page of a run has its scores, costs and figures, the words and phrases that speak for each class, the worst
    mistakes and the labels that are likely wrong, with the commands that explain them, and the recipe. Mistakes and
    words are those of the validation split; without its data, the page says so.

    Args:
        run: The run folder, what `longspan.load` returned for it, or the folder of `longspan.compare`.
        out: The file; by default `report.html` in that folder.
        allow_imports: Packages or modules that dotted paths in the run folder may import.

    Returns:
        What the report shows.

    Raises:
        UserError: The folder is that of neither, a run is unfinished or damaged, or `out` does not end in .html or has
            no folder.
    """
    if out is not None:
        check_file(Path(out), ".html")
    found: RunReport | ComparisonReport
    if isinstance(run, Path | str) and not Path(run, "recipe.toml").exists() and Path(run).is_dir():
        if not Path(run, "comparison.json").is_file():
            raise UserError(
                f"expected the folder of a run or of a comparison, with recipe.toml or comparison.json, got neither in "
                f"{str(run)!r}; name one."
            )
        found, usual = reporting.comparison_report(Path(run)), Path(run, NAME)
    else:
        loaded = as_run(run, allow_imports=allow_imports)
        found, usual = _with_validation(loaded), reporting.place(loaded)
    found.save(usual if out is None else Path(out))
    return found


def _with_validation(run: Run) -> RunReport:
    """Return the report of a run with what its model gets wrong in the validation split."""
    result, figures = reporting.recorded(run), reporting.pictures(run.folder)
    try:
        # What the last `evaluate` wrote stays.
        with tempfile.TemporaryDirectory() as folder:
            evaluation, examples = scored(run, None, "validation", run.task.evaluation_options(), Path(folder))
            figures |= reporting.pictures(Path(folder))
    except UserError as error:
        told = f"Mistakes and words are missing, as the validation split could not be scored: {error}"
        return reporting.made(run, result, figures | reporting.pictures(run.folder / "evaluation"), notes=[told])
    words = weighed_words(run, read_rows(run, reporting.sampled(run, examples)))
    if words is None:
        words = explained_words(run, reporting.sampled(run, examples))
    return reporting.made(run, result, figures, evaluation=evaluation, words=words)
