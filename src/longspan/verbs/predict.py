"""Apply a trained model to examples, in order and in constant memory: `predict`."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO

from longspan.data.rows import Row, read_rows
from longspan.results import Prediction
from longspan.runs import as_run
from longspan.tasks.base import Run


def predict(
    run: Run | Path | str,
    source: Path | str | Iterable[Row],
    *,
    stdin: BinaryIO | None = None,
    checkpoint: int | str | None = None,
    allow_imports: Iterable[str] = (),
) -> Iterator[Prediction]:
    """Yield what a run's model says about each example: a label or a document's loss, depending on the task.

    Args:
        run: The run folder, or what `longspan.runs.load_run` returned for it.
        source: A csv, tsv, jsonl, parquet or text file, a folder of text files, or "-" for `stdin`: see
            `longspan.data.rows.read_rows`, which reads them. Rows from there may be given instead. A limited number of
            them is read ahead.
        stdin: Standard input as bytes, for "-".
        checkpoint: The model saved after this step, or "last"; by default, the run's final model.
        allow_imports: Packages or modules that dotted paths in the run folder may import.

    Yields:
        For each row, in order, its prediction, or the `error` that says why there is none.

    Raises:
        UserError: The run or the source cannot be used: at once, or after the predictions for what was read before.
    """
    loaded = as_run(run, checkpoint, allow_imports)
    if isinstance(source, Path | str):
        data = loaded.recipe.data
        columns = [column for column in loaded.task.columns(data) if not column.target]
        source = read_rows(source, columns, data, stdin=stdin)
    return loaded.task.predict(loaded, source)
