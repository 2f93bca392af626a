"""Say which parts of an example speak for what a model says about it: `explain`."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

from longspan.data.graphs.networks import is_networkx
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError, check_choice
from longspan.explanations.methods import METHODS
from longspan.report.explanation import Explanation
from longspan.tasks.base.case import explained
from longspan.tasks.base.task import Run
from longspan.verbs.predict import rows_in_memory, rows_of_source
from longspan.verbs.runs import as_run


def explain(
    run: Run | Path | str,
    source: Any,
    *,
    row: int | None = None,
    of: str = "",
    at: float | None = None,
    method: str = "removal",
    check: bool = False,
    overrides: Sequence[str] = (),
    stdin: BinaryIO | None = None,
    checkpoint: int | str | None = None,
    allow_imports: Iterable[str] = (),
) -> Explanation:
    """Say how much each part of an example speaks for what a run's model says about it.

    Args:
        run: The run folder, or what `longspan.load` returned for it.
        source: The example: a file or data in memory, as `longspan.predict` reads them.
        row: Its number in the source, from 1; by default, the source must have a single one.
        of: Target of the explanation, such as a class or a token; by default the prediction.
        at: Where a model says something about each part of an example: the number of a word, token, mask or part, from
            1, or seconds of a recording. By default the first of those with the rarest prediction; of language models,
            the next token.
        method: Where scores come from. "removal" is the first-order effect of removing a position from all that others
            read; "gradient" is gradient times input; "occlusion" reads the example again without windows of it;
            "weight" is the mean of the raw weights of mixers, which are no explanation.
        check: Whether to measure how faithful the scores are, beside those of the other methods and random ones.
        overrides: How the source is read where that differs from training, such as ["data.text_column=body"].
        stdin: Standard input as bytes, for "-".
        checkpoint: The model saved after this step, or "last"; by default, the run's final model.
        allow_imports: Packages or modules that dotted paths in the run folder may import.

    Raises:
        UserError: The run or the source cannot be used, the source has several examples and no `row` was named, or not
            as many, nothing is called `of`, or there is nothing at `at`.
    """
    loaded = as_run(run, checkpoint, allow_imports, overrides)
    rows = partial(rows_of_source, loaded, source, loaded.data, stdin)
    return _explained(loaded, rows, row, of, at, method, check)


def explain_given(run: Run, given: Any, **options: Any) -> Explanation:
    """Explain an example in memory: as `explain`, but texts are never paths, and one need not be in a list.

    Args:
        run: The run.
        given: The example.
        options: `row`, `of`, `at`, `method` and `check` of `explain`.

    Raises:
        UserError: See `explain`.
    """
    # Tables of pandas and datasets have columns, and a graph of networkx has nodes.
    several = isinstance(given, list | Iterator) or any(hasattr(given, own) for own in ("columns", "column_names"))
    several = several or is_networkx(given)
    given = given if several else [given]
    return _explained(run, partial(rows_in_memory, run, given, run.data), **options)


def _explained(
    run: Run,
    rows: Callable[[], Iterator[Row]],
    row: int | None = None,
    of: str = "",
    at: float | None = None,
    method: str = "removal",
    check: bool = False,
) -> Explanation:
    check_choice("method", method, METHODS)
    if row is not None and row < 1:
        raise UserError(f"expected the number of a row, from 1, got {row}; count from 1.")
    chosen = _chosen(rows(), row)
    found = explained(run.task.case(run, chosen, of, at), method, check)
    return replace(found, extracted_from=chosen.extracted_from)


def _chosen(rows: Iterator[Row], number: int | None) -> Row:
    """Return the row of a number, or the only one."""
    if number is None:
        found = list(itertools.islice(rows, 2))
        if len(found) == 1:
            return found[0]
        many = "several" if found else "none"
        raise UserError(f"expected a single example to explain, got {many}; choose one with its number (--row).")
    count = 0
    for count, row in enumerate(rows, 1):
        if count == number:
            return row
    raise UserError(f"expected an example with the number {number:,}, got {count:,} examples; choose one of them.")
