"""Predictions of many rows by several processes, as numbered Parquet files that are written once: `predict_shards`.

One process reads the rows and cuts them into shards, where the engine's windows end: so a shard has the predictions
that one process has for its rows. A shard is renamed into place, and then listed in the manifest. The same command
writes those that are missing.
"""

import contextlib
import dataclasses
import hashlib
import json
import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing import get_context
from pathlib import Path, PurePath
from typing import Any, NamedTuple

from longspan.data.columns.kinds import TextFile
from longspan.data.fingerprints import file_digest
from longspan.data.sources.files.opening import expand
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.machine import locks
from longspan.machine.limits import cores
from longspan.machine.printing import note, shows_bars
from longspan.machine.session import end_with_parent, quieten_transformers, use_fastest_exact_products
from longspan.programs.predicting import is_export
from longspan.results import tables
from longspan.results.outputs import append_line, new_file
from longspan.results.predictions import ClassPrediction
from longspan.verbs.predict import note_truncation, note_unsure
from longspan.verbs.predictor import Predictor

#: List of the complete shards, one JSON object per line. Readers of folders of Parquet pass over its name.
MANIFEST = "_manifest.jsonl"
#: Rows, and characters and bytes of these, from which a shard is complete: some windows of the engine.
_ROWS, _CHARACTERS = 2_048, 16_000_000
#: Times in a row that processes may end before any shard is written.
ATTEMPTS = 3
#: Numbers in the line of a shard.
_NUMBERS = ("shard", "rows", "errors", "cut", "unfamiliar", "unsure", "bytes")


class Shard(NamedTuple):
    """Rows that are predicted together, by number, and a digest of them."""

    number: int
    rows: list[Row]
    digest: str


#: Writes the shards of a source that are not finished, and yields the line of each: `by_processes`, or that of Ray.
Engine = Callable[
    [Predictor, Sequence[Path | str], Path, Mapping[int, Mapping[str, Any]], int | None], Iterator[dict[str, Any]]
]


def predict_shards(
    predictor: Predictor,
    paths: Sequence[Path | str],
    folder: Path,
    *,
    jobs: int | None = None,
    engine: Engine | None = None,
) -> dict[str, int]:
    """Write the predictions for files into a folder, and go on where another call stopped.

    Args:
        predictor: The run, with the options of predictions.
        paths: Sources of rows, as of `longspan.predict`, but for standard input.
        folder: A new folder, or one that the same call left incomplete.
        jobs: Number of processes; None for the engine's own.
        engine: Engine that starts them; by default, `by_processes`.

    Returns:
        Numbers of `shards`, `rows` and `errors`, those written before included.

    Raises:
        UserError: The folder has predictions of another run, source or options, or rows have changed since; no shard of
            it changes. Or the source cannot be read, or processes end again and again.
    """
    if jobs is not None and jobs < 1:
        raise UserError(f"expected --jobs of at least 1, got {jobs}; choose a larger number.")
    if "-" in map(str, paths):
        raise UserError("expected files to write shards of, got standard input, which is read once; name a file.")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
    if not folder.is_dir():
        raise UserError(f"expected a folder for shards at {str(folder)!r}, got a file; name another one.")
    with locks.lock_folder(folder, "predictions"):
        manifest = Manifest(folder, _origin(predictor, paths))
        written = (engine or by_processes)(predictor, paths, folder, manifest.finished, jobs)
        from tqdm.auto import tqdm

        with tqdm(unit=" rows", initial=manifest.total("rows"), disable=not shows_bars()) as bar:
            try:
                for record in written:
                    manifest.add(record)
                    bar.update(record["rows"])
            except KeyboardInterrupt:
                raise KeyboardInterrupt("the same command continues where it stopped") from None
        manifest.complete()
    rows = manifest.total("rows")
    note_unsure(predictor.options.get("min_probability", 0.0), rows, manifest.total("unsure"))
    note_truncation(predictor.loaded, rows, manifest.total("cut"), manifest.total("unfamiliar"))
    return {"shards": len(manifest.finished), "rows": rows, "errors": manifest.total("errors")}


def _origin(predictor: Predictor, paths: Sequence[Path | str]) -> dict[str, Any]:
    """All that predictions depend on, but for what is in folders, whose rows have digests."""
    source = {}
    for path in map(str, paths):
        file = expand(path)
        with contextlib.suppress(OSError, ValueError):
            if file.is_file():
                source[path] = file_digest(file)
        source.setdefault(path, "")
    usual = ("allow_imports", "overrides", "min_probability")
    options = {name: value for name, value in predictor.options.items() if value or name not in usual}
    options = json.loads(json.dumps(options, sort_keys=True, default=list))
    return {"run": predictor.digest, "source": source, "options": options}


class Manifest:
    """Complete shards of a folder, each written by a line once its file is there.

    Args:
        folder: The folder.
        origin: All that its predictions depend on.

    Attributes:
        finished: Facts about each complete shard, by number.

    Raises:
        UserError: The folder has predictions of another origin, or other files.
    """

    def __init__(self, folder: Path, origin: Mapping[str, Any]) -> None:
        self.folder, self.finished, self._path = folder, dict[int, dict[str, Any]](), folder / MANIFEST
        lines = self._lines()
        there = [path.name for path in folder.iterdir() if path.name not in (MANIFEST, locks.FILE)]
        if not lines and there:
            raise UserError(
                f"expected a new folder for shards at {str(folder)!r}, got one with {there[0]!r} in it; name another."
            )
        words = {"run": "another model", "source": "other data, or these have changed", "options": "other options"}
        # As long as there is no shard, as after a source that does not exist, nothing can be mixed.
        for name, what in words.items() if there else ():
            if lines[0]["from"].get(name) != origin[name]:
                raise UserError(
                    f"expected a folder for these predictions, got {str(folder)!r} with those of {what}; name another."
                )
        for record in lines[1:]:
            if "shard" in record:
                path = folder / shard_name(record["shard"])
                if path.is_file() and path.stat().st_size == record["bytes"]:
                    self.finished[record["shard"]] = record
                else:
                    note(f"{path.name} is missing or damaged, and is written again")
        # Left by processes that were killed.
        for path in folder.glob(".part-*"):
            path.unlink()
        with new_file(self._path) as file:
            file.writelines(json.dumps(line) + "\n" for line in ({"from": origin}, *self.finished.values()))

    def _lines(self) -> list[dict[str, Any]]:
        """Its lines; without the last one, where the process was killed before its end."""
        try:
            text = self._path.read_text(encoding="utf-8")
            lines = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
            shards = [line for line in lines[1:] if "complete" not in line]
            if lines and not isinstance(lines[0]["from"], dict):
                raise ValueError("no origin")
            if not all(isinstance(line[name], int) for line in shards for name in _NUMBERS):
                raise ValueError("no number")
            if not all(line["input"] for line in shards):
                raise ValueError("no digest")
        except FileNotFoundError:
            return []
        except (ValueError, LookupError, TypeError):
            raise UserError(
                f"expected a list of shards in {str(self._path)!r}, got a damaged file; name another folder."
            ) from None
        return lines

    def add(self, record: dict[str, Any]) -> None:
        """List a shard as complete."""
        self.finished[record["shard"]] = record
        append_line(self._path, json.dumps(record))

    def complete(self) -> None:
        """Say that there are no more shards."""
        last = {"complete": True, "shards": len(self.finished), "rows": self.total("rows")}
        append_line(self._path, json.dumps(last))

    def total(self, name: str) -> int:
        """Sum of a number over the shards."""
        return sum(record[name] for record in self.finished.values())


def shard_name(number: int) -> str:
    """File name of a shard."""
    return f"part-{number:05d}.parquet"


def read_shards(
    predictor: Predictor, paths: Sequence[Path | str], finished: Mapping[int, Mapping[str, Any]]
) -> Iterator[Shard]:
    """Yield the shards of a source that are not finished.

    Raises:
        UserError: The source cannot be read, or has other rows in a finished shard.
    """
    number = -1
    # Rows that the model reads together, so that shards end where one process would compute anew.
    windows = predictor.loaded.task.windows(predictor.loaded, predictor.rows(paths))
    for number, (rows, digest) in enumerate(_cut(windows)):
        if number not in finished:
            yield Shard(number, rows, digest)
        elif finished[number]["input"] != digest:
            raise _changed(rows[0].where)
    if finished and max(finished) > number:
        raise _changed("its end")


def _changed(place: str) -> UserError:
    return UserError(
        f"expected the rows that these predictions began with, got others from {place} on; restore them, or name "
        "another folder."
    )


def _cut(windows: Iterable[list[Row]]) -> Iterator[tuple[list[Row], str]]:
    """The rows of each shard, and their digest."""
    rows, size, digest, words = list[Row](), 0, hashlib.sha256(), _Words()
    for window in windows:
        for row in window:
            text = json.dumps([row.values, row.where, row.problem, _files(row)], default=words)
            size += len(text)
            digest.update(text.encode())
        rows += window
        if len(rows) >= _ROWS or size + words.bytes >= _CHARACTERS:
            yield rows, digest.hexdigest()[:32]
            rows, size, digest, words.bytes = [], 0, hashlib.sha256(), 0
    if rows:
        yield rows, digest.hexdigest()[:32]


def _files(row: Row) -> list[list[int]]:
    """Sizes and times of the files that a row names, whose contents are read later."""
    found = []
    for value in row.values.values():
        path = value.path if isinstance(value, TextFile) else value.get("path") if isinstance(value, dict) else None
        if path:
            with contextlib.suppress(OSError):
                state = Path(path).stat()
                found.append([state.st_size, state.st_mtime_ns])
    return found


class _Words:
    """Words by content for values of rows that JSON has none for.

    Attributes:
        bytes: Size of the values so far that are bytes or arrays.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._last = dict[type, tuple[Any, str]]()

    def __call__(self, value: Any) -> Any:
        content: Any = value.content if isinstance(value, TextFile) else value
        if getattr(content, "dtype", None) == "object":
            # Its bytes would be addresses.
            return content.tolist()
        content = content.tobytes() if hasattr(content, "tobytes") else content
        if isinstance(content, bytes):
            self.bytes += len(content)
            return hashlib.sha256(content).hexdigest()
        if isinstance(value, PurePath):
            return str(value)
        # Many rows share one, such as the graph of all nodes, or the items of all impressions.
        last = self._last.get(type(value))
        if last is None or last[0] is not value:
            self._last[type(value)] = last = (value, self._digest(value))
        return last[1]

    def _digest(self, value: Any) -> str:
        if dataclasses.is_dataclass(value):
            parts: Iterable[Any] = [{field.name: getattr(value, field.name) for field in dataclasses.fields(value)}]
        else:
            from datasets import Dataset

            if not isinstance(value, Dataset):
                raise UserError(
                    f"expected rows that can be compared when the command goes on, got one with a "
                    f"{type(value).__name__}; predict with one process, without --jobs and --ray."
                )
            parts = value.iter(1_000)
        digest = hashlib.sha256(type(value).__name__.encode())
        for part in parts:
            digest.update(json.dumps(part, default=self).encode())
        return digest.hexdigest()


def write_shard(predictor: Predictor, folder: Path, shard: Shard) -> dict[str, Any]:
    """Write the predictions for a shard in place of its file, and return its line of the manifest."""
    from pyarrow import parquet

    predictions = predictor.predictions(shard.rows)
    path = folder / shard_name(shard.number)
    with new_file(path, binary=True) as file:
        parquet.write_table(tables.arrow_table(predictions, predictor.schema), file)
    return {
        "shard": shard.number,
        "rows": len(predictions),
        "errors": sum(one.error is not None for one in predictions),
        "cut": sum(one.tokens_read is not None for one in predictions),
        "unfamiliar": sum(bool(one.unfamiliar) for one in predictions),
        "unsure": sum(isinstance(one, ClassPrediction) and not one.label and not one.error for one in predictions),
        "bytes": path.stat().st_size,
        "input": shard.digest,
    }


def by_processes(
    predictor: Predictor,
    paths: Sequence[Path | str],
    folder: Path,
    finished: Mapping[int, Mapping[str, Any]],
    jobs: int | None,
) -> Iterator[dict[str, Any]]:
    """Write shards in processes of this machine, by default one; yield the line of each as it is complete.

    Raises:
        UserError: The source cannot be read, after the shards that could be. Or processes end again and again.
    """
    jobs = jobs or 1
    shards, attempts = read_shards(predictor, paths, dict(finished)), 0
    waiting: dict[int, Shard] = {}
    stopped: UserError | None = None
    while True:
        futures: dict[Future[dict[str, Any]], int] = {}
        pool = ProcessPoolExecutor(jobs, get_context("spawn"), _begin, (predictor, folder, max(1, cores() // jobs)))
        try:
            futures = {pool.submit(_write, shard): number for number, shard in waiting.items()}
            while True:
                while stopped is None and len(futures) < 2 * jobs:
                    try:
                        shard = next(shards, None)
                    except UserError as error:
                        stopped, shard = error, None
                    if shard is None:
                        break
                    waiting[shard.number] = shard
                    futures[pool.submit(_write, shard)] = shard.number
                if not futures:
                    if stopped is not None:
                        raise stopped
                    return
                for future in wait(futures, return_when=FIRST_COMPLETED).done:
                    record = future.result()
                    del waiting[futures.pop(future)]
                    attempts = 0
                    yield record
        except BrokenProcessPool:
            attempts += 1
            if attempts == ATTEMPTS:
                raise often_killed(jobs) from None
            note("a process was killed, as the system does when memory runs out; its shards are computed again")
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def often_killed(jobs: int) -> UserError:
    """Error that says that processes end again and again."""
    return UserError(
        f"expected {jobs} processes to write shards, got {ATTEMPTS} times that one of them was killed, as the system "
        "does when memory runs out; lower --jobs, and the same command goes on."
    )


_worker: tuple[Predictor, Path]


def _begin(predictor: Predictor, folder: Path, threads: int) -> None:
    """Prepare a process for writing shards; it ends with the process that started it."""
    global _worker
    # A shell may have started the parent with either ignored.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    end_with_parent()
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    prepare_process(predictor)
    _worker = predictor, folder


def prepare_process(predictor: Predictor) -> None:
    """Load a run as the command line does, so that results are the same."""
    if not is_export(predictor.run):
        quieten_transformers()
        use_fastest_exact_products()


def _write(shard: Shard) -> dict[str, Any]:
    return write_shard(*_worker, shard)
