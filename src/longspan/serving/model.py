"""A run as a server uses it: inputs from JSON and uploads, and one thread that answers requests together: `Service`."""

import base64
import binascii
import itertools
import queue
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from longspan.data.columns.files import File
from longspan.data.columns.kinds import Text
from longspan.data.columns.media import Media
from longspan.data.sources.files.opening import COMPRESSED
from longspan.data.sources.formats.schema import Row, schema_of
from longspan.data.sources.formats.tables import FORMATS
from longspan.errors import UserError
from longspan.report.explanation import Explanation
from longspan.results import Prediction
from longspan.results.outputs import write_new
from longspan.results.predictions import ClassPrediction, MultiLabelPrediction
from longspan.tasks.base.task import Run
from longspan.verbs.explain import explain_given
from longspan.verbs.predict import rows_in_memory

#: Rows of a file, such as the nodes of a graph.
FILE_ROWS = 10_000
#: Rows that are answered together at most, and how long the first of them waits for others.
TOGETHER, WINDOW_SECONDS = 64, 0.003
#: Values of rows that may be answered with those of other requests; a graph or a catalogue may not.
_PLAIN = (str, bytes, int, float, list, dict, type(None))


@dataclass(frozen=True)
class Limits:
    """Limits of a server.

    Attributes:
        body: Largest body of a request in bytes.
        inputs: Largest number of inputs in a request.
        characters: Largest number of characters of an input.
        queue: Largest number of requests that are answered or wait.
        seconds: Longest time from the first byte of a request to its answer.
    """

    body: int = 16_000_000
    inputs: int = 64
    characters: int = 1_000_000
    queue: int = 64
    seconds: float = 30.0


class Refusal(UserError):
    """A request that is not answered, with the status of HTTP that says why."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


@dataclass(frozen=True)
class _Job:
    """Work for the model's thread: predictions of rows, or a call."""

    future: Future[Any]
    rows: Sequence[Row] = ()
    call: Callable[[], Any] | None = None

    @property
    def joins(self) -> bool:
        return self.call is None and all(isinstance(one, _PLAIN) for row in self.rows for one in row.values.values())


class Service:
    """A run whose model runs in one thread, which answers the requests that wait together.

    Args:
        run: The run.
        limits: Limits of requests.
    """

    def __init__(self, run: Run, limits: Limits) -> None:
        self.run, self.limits = run, limits
        self.columns = list(run.task.inputs(run.recipe.data))
        # A path would be one of the server.
        self.schema = schema_of(self.columns, run.recipe.data, files=False)
        texts = {"file_column": ""} if hasattr(run.recipe.data, "file_column") else {}
        self._data_in_memory = replace(run.recipe.data, **texts)
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="model", daemon=True)

    # What it serves

    @property
    def labels(self) -> list[str]:
        """Labels that an input may have; empty where predictions are no classes."""
        if issubclass(self.run.task.prediction, ClassPrediction | MultiLabelPrediction):
            return list((self.run.model.config.id2label or {}).values())
        return []

    @property
    def medium(self) -> Media | None:
        """Column of pictures or recordings, if those are read."""
        return next((column for column in self.columns if isinstance(column, Media)), None)

    def metadata(self) -> dict[str, Any]:
        """Description of the run for programs and the page."""
        from longspan import __version__

        columns = [
            {"name": self.schema.names[column.name], "kind": column.kind, "required": column.required}
            for column in self.columns
        ]
        medium = self.medium
        return {
            "task": self.run.task.name,
            "run": self.run.folder.name,
            "recipe": self.run.recipe.name,
            "version": __version__,
            "labels": self.labels,
            "several_labels": issubclass(self.run.task.prediction, MultiLabelPrediction),
            "inputs": columns,
            "files": medium.files if medium else "documents",
            "suffixes": sorted(medium.suffixes) if medium else [],
            "parameters": sum(weight.numel() for weight in self.run.model.parameters()),
            "limits": vars(self.limits),
        }

    # Inputs

    def rows(self, inputs: Sequence[Any]) -> list[Row]:
        """Rows of the inputs of a request: texts, objects with columns, and files as {"name", "bytes"}.

        Raises:
            UserError: They are none, or too many or too long.
        """
        if not inputs:
            raise Refusal(422, "expected at least one input, got none; add one.")
        if len(inputs) > self.limits.inputs:
            raise Refusal(
                413, f"expected at most {self.limits.inputs} inputs, got {len(inputs):,}; send fewer at once."
            )
        for number, given in enumerate(inputs, 1):
            if (size := _characters(given)) > self.limits.characters and not _is_file(given):
                raise Refusal(
                    413,
                    f"expected at most {self.limits.characters:,} characters in an input, got {size:,} in input "
                    f"{number}; shorten it.",
                )
        rows: list[Row] = []
        for file, group in itertools.groupby(inputs, _is_file):
            given = list(group)
            found = itertools.chain.from_iterable(map(self._of_file, given)) if file else self._of_values(given)
            rows += itertools.islice(found, FILE_ROWS + 1 - len(rows))
            if len(rows) > FILE_ROWS:
                raise Refusal(413, f"expected at most {FILE_ROWS:,} examples, got more; send fewer at once.")
        if not rows:
            raise Refusal(422, "expected something to read, got nothing; check the file.")
        return rows

    def _of_values(self, inputs: list[Any]) -> Iterator[Row]:
        return rows_in_memory(self.run, [self._without_paths(one) for one in inputs], self._data_in_memory)

    def _without_paths(self, given: Any) -> Any:
        """An input whose files are bytes, not paths."""
        files = {self.schema.names[column.name] for column in self.columns if isinstance(column, File)}
        if not files:
            return given
        if not isinstance(given, Mapping):
            return _media_cell(given)
        if given.keys().isdisjoint(files) and ("bytes" in given or "array" in given) and len(files) == 1:
            return {files.pop(): _media_cell(given)}
        return {name: _media_cell(value) if name in files else value for name, value in given.items()}

    def _of_file(self, given: Mapping[str, str]) -> Iterator[Row]:
        """Rows of an uploaded file: one picture, recording or graph, or one document."""
        name = re.sub(r"[^\w.\- ]", "_", Path(given["name"]).name)[-100:] or "upload"
        content, suffix = _decoded(given["bytes"]), Path(name).suffix.lower()
        medium = self.medium
        if medium is not None:
            if suffix not in medium.suffixes:
                raise Refusal(
                    415, f"expected one of the {medium.files} ({', '.join(sorted(medium.suffixes))}), got {name!r}."
                )
            cell = {self.schema.names[medium.name]: {"bytes": content}}
            for row in rows_in_memory(self.run, [cell], self.run.recipe.data):
                yield row._replace(where=name)
            return
        if suffix in FORMATS or suffix in COMPRESSED:
            raise Refusal(415, f"expected a document, got {name!r}; unpack it, and send the rows of a table as JSON.")
        with tempfile.TemporaryDirectory(prefix="longspan-upload-") as folder:
            path = Path(folder, name)
            write_new(path, content)
            try:
                yield from self.run.task.inputs_of(self.run, [path], self.run.recipe.data, None)
            except UserError as error:
                raise UserError(str(error).replace(f"{folder}/", "")) from None

    # Answers

    def start(self) -> None:
        """Start the thread, and compile what the first request would wait for."""
        self._thread.start()
        if [type(column) for column in self.columns if column.required] == [Text]:
            self.predictions(self.rows(["A first text."])).exception()

    def close(self) -> None:
        """Answer all that waits, and end the thread."""
        self._jobs.put(None)
        self._thread.join()

    def predictions(self, rows: Sequence[Row]) -> Future[list[Prediction]]:
        """Predictions of rows, which are computed with those of other requests."""
        return self._submitted(_Job(Future(), rows))

    def explanation(self, rows: Sequence[Row], **options: Any) -> Future[Explanation]:
        """Explanation of the only row; options are those of `longspan.explain`."""
        return self._submitted(_Job(Future(), call=lambda: explain_given(self.run, list(rows), **options)))

    def _submitted(self, job: _Job) -> Future[Any]:
        self._jobs.put(job)
        return job.future

    def _work(self) -> None:
        waiting: _Job | None = None
        while (job := waiting or self._jobs.get()) is not None:
            jobs, waiting, ended = [job], None, False
            count, end = len(job.rows), time.monotonic() + WINDOW_SECONDS
            while job.joins and count < TOGETHER and not waiting:
                try:
                    other = self._jobs.get(timeout=max(0.0, end - time.monotonic()))
                except queue.Empty:
                    break
                if other is None:
                    ended = True
                    break
                if other.joins and count + len(other.rows) <= TOGETHER:
                    jobs.append(other)
                    count += len(other.rows)
                else:
                    waiting = other
            self._answer([one for one in jobs if one.future.set_running_or_notify_cancel()])
            if ended:
                return

    def _answer(self, jobs: Sequence[_Job]) -> None:
        try:
            if len(jobs) == 1 and jobs[0].call is not None:
                jobs[0].future.set_result(jobs[0].call())
                return
            rows = [row for job in jobs for row in job.rows]
            found = iter(list(self.run.task.predict(self.run, rows)) if rows else ())
        except Exception as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            # One of them is at fault.
            for job in jobs:
                self._answer([job])
            return
        for job in jobs:
            job.future.set_result(list(itertools.islice(found, len(job.rows))))


def _is_file(given: Any) -> bool:
    """Whether an input is a file: its name and its bytes, in Base64."""
    return (
        isinstance(given, Mapping)
        and given.keys() == {"name", "bytes"}
        and all(isinstance(value, str) for value in given.values())
    )


def _media_cell(cell: Any) -> Any:
    if isinstance(cell, str):
        raise UserError('expected an object with "bytes" in Base64 or an "array", got a text; paths are not read.')
    if isinstance(cell, Mapping):
        cell = {name: value for name, value in cell.items() if name != "path"}
        if isinstance(cell.get("bytes"), str):
            cell["bytes"] = _decoded(cell["bytes"])
    return cell


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise UserError("expected bytes in Base64, got something else; encode the file.") from None


def _characters(given: Any) -> int:
    """Number of characters in the texts of an input."""
    if isinstance(given, str):
        return len(given)
    if isinstance(given, Mapping):
        return sum(_characters(value) for name, value in given.items() if name != "bytes")
    return sum(map(_characters, given)) if isinstance(given, list) else 0
