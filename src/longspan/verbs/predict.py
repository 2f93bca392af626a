"""Apply a trained model to examples, in order and in constant memory: `predict`."""

import contextlib
import dataclasses
import itertools
import math
import re
import reprlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import TYPE_CHECKING, Any, BinaryIO, TextIO

from longspan.data.columns.annotations import in_list
from longspan.data.columns.values import described
from longspan.data.sources.files.opening import expand
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError, check_choice
from longspan.machine.printing import json_text, note, printable_lines
from longspan.programs.predicting import Program, is_export
from longspan.results import Prediction, tables
from longspan.results.outputs import check_file, new_file
from longspan.results.predictions import ClassPrediction
from longspan.results.sorting import FileSorter
from longspan.results.tables import PredictionStream, index_of

if TYPE_CHECKING:
    from longspan.tasks.base.task import Run


def predict(
    run: "Run | Program | Path | str",
    source: Any,
    *,
    overrides: Sequence[str] = (),
    text_column: str | None = None,
    encoding: str | None = None,
    delimiter: str | None = None,
    header: bool | None = None,
    stdin: BinaryIO | None = None,
    min_probability: float | Mapping[str, float] = 0.0,
    sort_into: Path | str | None = None,
    checkpoint: int | str | None = None,
    allow_imports: Iterable[str] = (),
    **options: Any,
) -> PredictionStream:
    """Predictions of a run's model for each example: a label or a document's loss, depending on the task.

    Args:
        run: The run folder, or what `longspan.verbs.runs.load_run` returned for it. Or the folder of an export for
            ONNX, whose program answers as its run does, without PyTorch: of document classification, regression,
            multiple labels and token classification.
        source: The input of training, without its labels: a table, a text file or HTML page, or a folder of these with
            any folders in it. Also "hub:NAME", "packages", or "-" for `stdin`, or a list of such.
            `longspan.data.sources.paths.read_paths` reads them. Or data in memory: a DataFrame, a `datasets.Dataset`, a
            dict of columns, or a list or iterator of texts, of dicts, or of rows from `read_paths`. A limited number of
            rows is read ahead.
        overrides: How the source is read where that differs from training, such as ["data.title_column=headline"].
        text_column: The column with the documents. By default, this and the next three are as in training.
        encoding: The encoding of files, or "auto".
        delimiter: Separator of the fields of csv and tsv files.
        header: Whether their first row has the names of the columns.
        stdin: Standard input as bytes, for "-".
        min_probability: Least probability of a label, or of each by its name, others need none; infinity for never.
            Below it, an example has probabilities alone. Only for tasks with one class per example. `evaluate` chooses
            it for a `precision`.
        sort_into: New folder that gets a copy of each file in a folder of its label; see `FileSorter`. Files are copied
            as their predictions are computed.
        checkpoint: The model saved after this step, or "last"; by default, the run's final model.
        allow_imports: Packages or modules that dotted paths in the run folder may import.
        options: The task's prediction options, such as `beams` of translation.

    Returns:
        An iterator: for each row, in order, its prediction, or the `error` that says why it is missing; one at a time,
        whatever the source, as files may be longer than the memory. `to_pandas` makes a DataFrame of them.
        `run.predict` of a list returns a list. Of truncated documents it says how many tokens were read, and at the end
        a sentence on standard error says how many documents these are.

    Raises:
        UserError: The run or the source cannot be used: at once, or after the predictions for what was read before.
    """
    loaded = opened(run, checkpoint, allow_imports, overrides, options)
    given = {"text_column": text_column, "encoding": encoding, "delimiter": delimiter, "header": header}
    data = reading(loaded, given)
    sorter = None if sort_into is None else _sorter(Path(sort_into), source)
    watch: Callable[[Iterator[Row]], Iterator[Row]] = iter if sorter is None else sorter.watch
    found = _predictions(loaded, watch(rows_of_source(loaded, source, data, stdin)), min_probability)
    if sorter is not None:
        _check_classes("sort_into", loaded.task.prediction)
        found = _noting_copies(sorter, found)
    return PredictionStream(found, index_of(source))


def opened(
    run: Any,
    checkpoint: int | str | None = None,
    allow_imports: Iterable[str] = (),
    overrides: Sequence[str] = (),
    options: Mapping[str, Any] = MappingProxyType({}),
) -> "Run | Program":
    """The run or the exported program, loaded unless it is.

    Raises:
        UserError: See `longspan.verbs.runs.as_run` and `Program`. Or a checkpoint or options are given for a program.
    """
    if not isinstance(run, Program) and not is_export(run):
        # Programs are run without PyTorch.
        from longspan.verbs.runs import as_run

        return as_run(run, checkpoint, allow_imports, overrides, options)
    for name in [*(["checkpoint"] if checkpoint is not None else []), *options]:
        raise UserError(f"expected {name!r} with a run folder, got it with an export, which has no such choice.")
    return (run if isinstance(run, Program) else Program(run)).reading(overrides)


def reading(run: "Run | Program", given: Mapping[str, Any]) -> Any:
    """Settings by which a run's sources are read, with those that are `given` and not None."""
    return dataclasses.replace(run.data, **{name: value for name, value in given.items() if value is not None})


def rows_of_source(run: "Run | Program", source: Any, data: Any, stdin: BinaryIO | None) -> Iterator[Row]:
    """Return the rows of what `predict` reads: files, or data in memory.

    Raises:
        UserError: The source cannot be used.
    """
    paths = _paths(source)
    return rows_in_memory(run, source, data) if paths is None else run.task.inputs_of(run, paths, data, stdin)


def predict_given(
    run: "Run", given: Any, *, min_probability: float | Mapping[str, float] = 0.0, **options: Any
) -> Iterator[Prediction]:
    """Predictions for data in memory, as of `predict`, but texts are never paths.

    Raises:
        UserError: The data cannot be used.
    """
    loaded = opened(run, options=options)
    return _predictions(loaded, rows_in_memory(loaded, given, loaded.data), min_probability)


def _paths(source: Any) -> list[Path | str] | None:
    """Return the paths that a source consists of; None if it is in memory.

    Raises:
        UserError: It is a text, or texts and paths.
    """
    if isinstance(source, Path | str):
        if _is_text(str(source)):
            raise UserError(
                f"expected the path of a file or folder, got the text {reprlib.repr(str(source))}; give a list of "
                "texts."
            )
        return [source]
    if not isinstance(source, list | tuple) or not all(isinstance(path, Path | str) for path in source):
        return None
    texts = [path for path in source if isinstance(path, str) and _is_text(path)]
    if texts and len(texts) < len(source):
        other = next(path for path in source if path not in texts)
        raise UserError(
            f"expected either texts or paths of files and folders, got the text {reprlib.repr(texts[0])} and what "
            f"looks like the path {reprlib.repr(str(other))}; give only one kind, or texts as {{column: texts}}."
        )
    return None if texts else list(source)


def _is_text(path: str) -> bool:
    """Say whether something in place of a path is a text rather than a mistyped path."""
    try:
        if expand(path).exists():
            return False
    except (OSError, ValueError):
        return True
    return path not in ("-", "packages") and not path.startswith("hub:") and bool(re.search(r"\s", path.strip()))


def rows_in_memory(run: "Run | Program", given: Any, data: Any) -> Iterator[Row]:
    """Return the rows of data in memory, or those that were read before.

    Raises:
        UserError: It is neither, or lacks a column.
    """
    if isinstance(given, Iterator):
        return _of_iterator(run, given, data)
    if isinstance(given, list) and given and isinstance(given[0], Row):
        return iter(given)
    if isinstance(given, str | bytes) or not (isinstance(given, Iterable) or hasattr(given, "__arrow_c_stream__")):
        raise UserError(
            f"expected a list of texts, a DataFrame or a Dataset, got {described(given)}; give one of them."
        )
    return run.task.inputs_in_memory(run, given, data)


def _of_iterator(run: "Run | Program", given: Iterator[Any], data: Any) -> Iterator[Row]:
    """Yield the rows of an iterator, of which nothing is read before the first is asked for."""
    first = list(itertools.islice(given, 1))
    given = itertools.chain(first, given)
    yield from given if first and isinstance(first[0], Row) else run.task.inputs_in_memory(run, given, data)


def _predictions(run: "Run | Program", rows: Iterator[Row], least: float | Mapping[str, float]) -> Iterator[Prediction]:
    """Predictions for rows, without labels whose probability is below `least`, of all or of each by its name.

    Raises:
        UserError: It is no probability, or predictions have none for each class.
    """
    predictions = _noting_truncation(run, run.task.predict(run, rows))
    for share in least.values() if isinstance(least, Mapping) else [least]:
        if not 0 <= share <= 1 and share != math.inf:
            raise UserError(f"expected min_probability from 0 to 1, got {share}; choose another.")
    if not least:
        return predictions
    _check_classes("min_probability", run.task.prediction)
    return _noting_unsure(predictions, least)


def _check_classes(name: str, kind: type[Prediction]) -> None:
    if not issubclass(kind, ClassPrediction):
        raise UserError(
            f"expected {name} with a task that has one class per example, got another one, with a {kind.__name__} for "
            "each; leave it out."
        )


def _noting_unsure(predictions: Iterator[Prediction], least: float | Mapping[str, float]) -> Iterator[Prediction]:
    unsure = total = 0
    unchecked = isinstance(least, Mapping)
    for prediction in predictions:
        assert isinstance(prediction, ClassPrediction)
        if unchecked and prediction.probabilities is not None:
            assert isinstance(least, Mapping)
            for name in least:
                check_choice("min_probability of", name, list(prediction.probabilities))
            unchecked = False
        found = prediction.sure(lambda label: least.get(label, 0.0) if isinstance(least, Mapping) else least)
        total += 1
        unsure += found is not prediction
        yield found
    note_unsure(least, total, unsure)


def note_unsure(least: float | Mapping[str, float], total: int, unsure: int) -> None:
    """Say how many of `total` examples have no label, unless all have one."""
    if unsure:
        bound = "its least" if isinstance(least, Mapping) else f"{least:g}"
        note(f"{unsure:,} of {total:,} examples have no label, as the probability of the likeliest is below {bound}")


def _sorter(folder: Path, source: Any) -> FileSorter:
    """Raises UserError for data in memory, or a folder that cannot be made."""
    paths = _paths(source)
    if paths is None or "-" in map(str, paths):
        raise UserError("expected files or folders with sort_into, got other data; leave it out.")
    return FileSorter(folder, paths)


def _noting_copies(sorter: FileSorter, predictions: Iterator[Prediction]) -> Iterator[Prediction]:
    try:
        yield from sorter.sort(predictions)
    finally:
        note(sorter.summary())


def _noting_truncation(run: "Run | Program", predictions: Iterator[Prediction]) -> Iterator[Prediction]:
    """Yield predictions, and say at the end how many documents are unfamiliar or were not read whole."""
    cut = total = unfamiliar = 0
    try:
        for prediction in predictions:
            total += 1
            cut += prediction.tokens_read is not None
            unfamiliar += bool(prediction.unfamiliar)
            yield prediction
    except GeneratorExit:
        # Not used up, perhaps as Python ends, when there is nothing left to say anything with.
        cut = unfamiliar = 0
        raise
    finally:
        note_truncation(run, total, cut, unfamiliar)


def note_truncation(run: "Run | Program", total: int, cut: int, unfamiliar: int) -> None:
    """Say how many of `total` documents are unfamiliar or were not read whole, unless none is."""
    if unfamiliar:
        note(
            f"{unfamiliar:,} of {total:,} texts are unlike the training data (unfamiliar), where their words are "
            f"rare; so are {run.false_alarms:.1%} of the validation texts"
        )
    if cut:
        data: Any = run.data
        kept = {"first": "beginning", "last": "end"}.get(data.keep, data.keep)
        note(
            f"{cut:,} of {total:,} documents have more than the {data.max_length:,} tokens that the "
            f"model was trained to read (data.max_length), so only the {kept} of each was read"
        )


def print_predictions(
    run: "Run | Program | Path | str",
    paths: Sequence[Path | str],
    out: TextIO,
    *,
    stdin: BinaryIO,
    format: str = "",
    output: Path | None = None,
    overwrite: bool = False,
    checkpoint: int | str | None = None,
    **given: Any,
) -> None:
    """Print one JSON line per example, in order, or what another `format` of the task makes of it.

    Args:
        run: As of `predict`.
        paths: Sources of examples.
        out: File to print to.
        stdin: Standard input as bytes, for "-".
        format: One of `tables.FORMATS`, or of the task's; "" for that of the ending of `output`, or JSON lines.
        output: File to write to instead, whole or not at all.
        overwrite: Replace an `output` that exists.
        checkpoint: As of `predict`.
        given: More arguments of `predict`.

    Raises:
        UserError: See `predict`; options are named as flags. Or the task has no such format, or there are examples
            without a prediction.
    """
    loaded = opened(run, checkpoint)
    formats: dict[str, Callable[[Any], str]] = {"json": lambda one: json_text(one.to_dict()), **loaded.task.formats()}
    lists = loaded.task.annotation_formats
    format = _checked_format(format, output, overwrite, formats, lists)
    given = {**loaded.task.format_options().get(format, {}), **given}
    failed = total = undecoded = 0
    stopped: UserError | None = None

    def counted() -> Iterator[Prediction]:
        nonlocal failed, total, undecoded, stopped
        try:
            for prediction in predict(loaded, paths, stdin=stdin, **given):
                total += 1
                failed += prediction.error is not None
                undecoded += (prediction.error or "").startswith("broken ")
                yield prediction
        except UserError as error:
            stopped = UserError(_with_flags(str(error)))
            if not total:
                raise stopped from None
            # What was read before is written.

    binary = format in tables.FORMATS and format not in tables.PRINTED
    with contextlib.nullcontext(out) if output is None else new_file(output, binary=binary) as file:
        if format in tables.FORMATS:
            # Names and texts of strangers do not control a terminal.
            shown: Any = SimpleNamespace(write=lambda text: file.write(printable_lines(text)), flush=file.flush)
            tables.write_table(counted(), format, shown if not binary and file.isatty() else file)
        else:
            texts = map(formats[format], _noting_errors(counted()) if format in lists else counted())
            for text in in_list(texts) if lists.get(format) else texts:
                # A file gets the words as they are.
                print(printable_lines(text) if file.isatty() else text, file=file, flush=True)
    if stopped is not None:
        raise stopped
    if failed:
        hint = ", and --encoding auto finds out encodings" if undecoded else ""
        raise UserError(f"there are no predictions for {failed} of {total} examples; their lines say why{hint}.")


def _noting_errors(predictions: Iterator[Prediction]) -> Iterator[Prediction]:
    """Yield predictions without those that are errors, which are said: files of annotations have no room for them."""
    for prediction in predictions:
        if prediction.error is None:
            yield prediction
        else:
            note(f"{prediction.where}: {prediction.error}")


def _checked_format(
    format: str, output: Path | None, overwrite: bool, of_task: Collection[str], annotations: Mapping[str, bool]
) -> str:
    """Return the format of what is printed, or written to `output`."""
    if output is None:
        if format in tables.FORMATS and format not in tables.PRINTED:
            raise UserError(f"expected --output FILE with --format {format}, which is not text, got none; add it.")
        check_choice("--format", format or "json", [*of_task, *tables.FORMATS])
        return format or "json"
    ending = output.suffix.removeprefix(".")
    if not format:
        endings = [f".{name}" for name in tables.FORMATS]
        check_file(output, *endings)
        format = ending
    check_choice("--format", format, [*of_task, *tables.FORMATS])
    lines = {"json": "jsonl"} | {name: "jsonl" for name, is_list in annotations.items() if not is_list}
    if ending in tables.FORMATS and ending != lines.get(format, format):
        raise UserError(
            f"expected a file that ends in .{format} with --format {format}, got {str(output)!r}; name one of them."
        )
    if not output.parent.is_dir():
        raise UserError(f"expected a folder at {str(output.parent)!r} to write {output.name!r} to, got none; make it.")
    if output.exists() and not overwrite:
        raise UserError(f"expected a new file, got {str(output)!r}, which exists; name another one, or --overwrite it.")
    return format


def _with_flags(message: str) -> str:
    """Return a message with flags of the command line instead of recipe keys."""
    message = message.replace("data.header=false", "--no-header").replace("min_probability", "--min-probability")
    message = message.replace("sort_into", "--sort-into")
    return re.sub(
        r"data\.(text_column|encoding|delimiter)(=?)",
        lambda found: f"--{found[1].replace('_', '-')}{' ' if found[2] else ''}",
        message,
    )
