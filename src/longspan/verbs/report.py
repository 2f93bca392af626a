"""Write a report of a run or of a comparison: `write_report`."""

import tempfile
from collections.abc import Iterable
from pathlib import Path

from longspan.errors import UserError
from longspan.report.run_report import NAME, ComparisonReport, RunReport
from longspan.results.outputs import check_file
from longspan.tasks.base.task import Run
from longspan.verbs import report_contents as contents
from longspan.verbs.evaluate import scored
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
        found, usual = contents.comparison_report(Path(run)), Path(run, NAME)
    else:
        loaded = as_run(run, allow_imports=allow_imports)
        found, usual = _with_validation(loaded), contents.report_path(loaded)
    found.save(usual if out is None else Path(out))
    return found


def _with_validation(run: Run) -> RunReport:
    """Return the report of a run with what its model gets wrong in the validation split."""
    result, figures = contents.training_result(run), contents.figures_in(run.folder)
    try:
        # What the last `evaluate` wrote stays.
        with tempfile.TemporaryDirectory() as folder:
            evaluation, examples = scored(run, None, "validation", run.task.evaluation_options(), Path(folder))
            figures |= contents.figures_in(Path(folder))
    except UserError as error:
        note = f"Mistakes and words are missing, as the validation split could not be scored: {error}"
        return contents.run_report(run, result, figures | contents.figures_in(run.folder / "evaluation"), notes=[note])
    words = contents.weighed_words(run, contents.read_rows(run, contents.sample_rows(run, examples)))
    if words is None:
        words = contents.explained_words(run, contents.sample_rows(run, examples))
    return contents.run_report(run, result, figures, evaluation=evaluation, words=words)
