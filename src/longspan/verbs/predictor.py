"""Predictions for batches that Ray Data, Spark or `datasets` deal out to processes: `Predictor`."""

import functools
import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from longspan.data.columns.values import listed
from longspan.data.fingerprints import file_digest
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.machine.imports import allow
from longspan.machine.printing import silenced
from longspan.options import make
from longspan.programs.predicting import Program, is_export
from longspan.results import Prediction, tables
from longspan.verbs.predict import opened, predict, reading, rows_of_source

if TYPE_CHECKING:
    from longspan.tasks.base.task import Run

#: Arguments of `predict` that say how rows are read.
_READING = ("text_column", "encoding", "delimiter", "header")
#: Its other arguments that are no options of a task.
_OTHERS = ("min_probability", "checkpoint", "allow_imports", "overrides")
#: Files of a run or an export that its predictions depend on.
_FILES = ("*.toml", "*.json", "*.safetensors", "*.onnx", "*.onnx.data")


class Predictor:
    """Predictions of a run for batches: a callable that can be pickled, so that engines can send it to processes.

    Each process loads the run once. Predictions have the columns that `longspan predict --output` writes, with a row
    for each example, those with an `error` included.

    Args:
        run: The run folder or the export, as of `longspan.predict`, or a `TrainedRun` with its final model. Other
            machines need the same model at the same path.
        keep: Columns of batches that come before those of predictions, such as a key: engines change the order of rows.
        options: Keyword arguments of `longspan.predict`, but for `stdin` and `sort_into`.

    Attributes:
        run: Path of the folder.
        options: Keyword arguments of `longspan.predict`.
        digest: Digest of its model and its recipe, which changes where it is trained again.

    Raises:
        UserError: There is no run, or no such checkpoint or option. Or the run is loaded, and not as its folder has it.
    """

    def __init__(self, run: Any, *, keep: Sequence[str] = (), **options: Any) -> None:
        if isinstance(keep, str):
            raise UserError(f"expected keep to be several names, got the text {keep!r}; write [{keep!r}].")
        for name in {"stdin", "sort_into"} & options.keys():
            raise UserError(f"expected predictions of batches without {name!r}, got it; leave it out.")
        for name in keep:
            if list(keep).count(name) > 1:
                raise UserError(f"expected names of different columns to keep, got {name!r} twice; leave one out.")
        self.run = str(Path(getattr(run, "folder", run)).absolute())
        self.keep, self.options = list(keep), options
        self.digest = _digest(self.run, options.get("checkpoint"))
        self._check(run)

    def _check(self, run: Any) -> None:
        """Raise UserError for a loaded run that its folder does not have, and options that do not fit."""
        for name, value in self.options.items():
            try:
                json.dumps(value, default=list)
            except (TypeError, ValueError):
                raise UserError(f"expected {name} to be text, a number or a list, got {value!r}; correct it.") from None
        own = {name: value for name, value in self.options.items() if name not in (*_READING, *_OTHERS)}
        # A `TrainedRun` that has not loaded its model has the final one.
        loaded = {} if isinstance(run, os.PathLike | str) else vars(vars(run).get("loaded", run))
        if is_export(self.run):
            same = "data" not in loaded or loaded["data"] == Program(self.run).data
        else:
            # Programs are run without PyTorch.
            from longspan import recipes

            with allow(*self.options.get("allow_imports", ())):
                recipe = recipes.of_run(Path(self.run))
                if own:
                    options = recipe.task.prediction_options
                    make(options, own, f"predicting with the task {recipe.task.name!r}")
            same = loaded.get("checkpoint") is None and loaded.get("prediction") is None
            same &= loaded.get("recipe", recipe) == recipe
        if not same:
            raise UserError(
                "expected a run as its folder has it, got one that was loaded with a checkpoint or settings of its "
                "own; give its path, and checkpoint=, overrides= or options."
            )

    @property
    def loaded(self) -> "Run | Program":
        """The run or the program, which this process loads once."""
        later = (*_READING, "min_probability")
        options = {name: value for name, value in sorted(self.options.items()) if name not in later}
        return _loaded(self.run, self.digest, json.dumps(options, default=list))

    @property
    def schema(self) -> Any:
        """Arrow schema of predictions, whatever a batch contains."""
        return tables.prediction_schema(self.loaded.task.prediction, self.loaded.labels)

    def __call__(self, batch: Any) -> Any:
        """Table of predictions, of the kind of the batch.

        Args:
            batch: A DataFrame of pandas, a table of Arrow, or a dict of columns. Also a record batch of Arrow, for a
                table.

        Raises:
            UserError: It lacks a column, or predictions have a column of the name of one to keep.
        """
        import pyarrow as pa

        if isinstance(batch, pa.RecordBatch):
            batch = pa.Table.from_batches([batch])
        columns = batch.column_names if isinstance(batch, pa.Table) else list(batch)
        for name in self.keep:
            if name not in columns:
                raise UserError(f"expected the column {name!r} to keep, got {listed(columns)}; name one of these.")
            if name in self.schema.names:
                raise UserError(
                    f"expected columns to keep of other names than those of predictions, got {name!r}; rename it."
                )
        size = len(batch[columns[0]]) if columns else 0
        found = tables.arrow_table(self.predictions(batch) if size else (), self.schema)
        if self.keep and len(found) != size:
            raise UserError(
                f"expected a prediction for each row to keep columns with, got {len(found)} for {size} rows; leave "
                "keep out."
            )
        for place, name in enumerate(self.keep):
            values = batch[name]
            found = found.add_column(place, name, values if isinstance(batch, pa.Table) else pa.array(values))
        if isinstance(batch, pa.Table):
            return found
        if isinstance(batch, Mapping):
            return found.to_pydict()
        frame = found.to_pandas()
        return frame.set_axis(batch.index) if len(frame) == size else frame

    def predictions(self, source: Any) -> list[Prediction]:
        """Predictions for a batch, or for rows that were read, without notes."""
        given = {name: self.options[name] for name in (*_READING, "min_probability") if name in self.options}
        with silenced():
            return list(predict(self.loaded, source, **given))

    def rows(self, paths: Sequence[Path | str]) -> Iterator[Row]:
        """Rows of files, as `longspan.predict` reads them.

        Raises:
            UserError: They cannot be read.
        """
        data = reading(self.loaded, {name: self.options.get(name) for name in _READING})
        return rows_of_source(self.loaded, list(paths), data, None)


def _digest(run: str, checkpoint: int | str | None) -> str:
    """Digest of a model and its recipe."""
    sources = [Path(run)]
    if checkpoint is not None:
        from longspan.training import checkpoints

        sources.append(checkpoints.find(Path(run, "checkpoints"), checkpoint))
    files = sorted(path for source in sources for name in _FILES for path in source.glob(name))
    if not files:
        # This says what is missing.
        opened(run)
    contents = "".join(f"{path.name} {file_digest(path)}\n" for path in files)
    return hashlib.sha256(contents.encode()).hexdigest()[:32]


@functools.lru_cache(maxsize=2)
def _loaded(run: str, digest: str, options: str) -> "Run | Program":
    """Load a run with the arguments of `predict` in `options`, JSON."""
    given = json.loads(options)
    checkpoint, allow_imports = given.pop("checkpoint", None), given.pop("allow_imports", ())
    overrides = given.pop("overrides", ())
    if _digest(run, checkpoint) != digest:
        raise UserError(
            f"expected the model that this Predictor was made with, got another model at {run!r} on this machine; "
            "copy the run there, or make the Predictor again."
        )
    return opened(run, checkpoint, allow_imports, overrides, given)
