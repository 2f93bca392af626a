"""Predictions of runs and of exported programs for rows, without PyTorch: `Inference` and `Answering`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO, ClassVar

import numpy as np

from longspan.data.columns.kinds import Column
from longspan.data.config import DataConfig
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.in_memory import rows_of
from longspan.data.sources.paths import read_paths
from longspan.errors import UserError
from longspan.results import Prediction

#: Size of a window: rows that are read, grouped by length and answered at a time.
WINDOW_EXAMPLES = 512
WINDOW_CHARACTERS = 1_000_000

#: Function that runs a program: its inputs by name to its output, whose numbers are finite.
Runner = Callable[[Mapping[str, np.ndarray]], np.ndarray]


def damaged(folder: Path, problem: str) -> UserError:
    """Error of an export that cannot be used; `problem` follows "got"."""
    return UserError(f"expected a complete export in {str(folder)!r}, got {problem}; export the run again.")


class Inference(ABC):
    """Rows that are read, and predictions for them: of a `Task` by its runs, or of an exported program.

    Methods get the run or the program.
    """

    #: The class of its predictions, each field of which may be None: those of rows that cannot be read are of it, too.
    prediction: type[Prediction] = Prediction
    #: Those of `formats` that are one JSON object for each example, without errors; and whether these are one list.
    annotation_formats: ClassVar[Mapping[str, bool]] = MappingProxyType({})

    @abstractmethod
    def inputs(self, data: Any) -> Sequence[Column]:
        """Return the columns that predictions are made from."""

    def inputs_of(self, run: Any, paths: Sequence[Path | str], data: Any, stdin: BinaryIO | None) -> Iterator[Row]:
        """Return the rows of files that `predict` reads: by default, one for each row with the columns of `inputs`.

        Raises:
            UserError: See `longspan.data.sources.paths.read_paths`.
        """
        return read_paths(paths, self.inputs(data), data, stdin=stdin)

    def inputs_in_memory(self, run: Any, given: Any, data: Any) -> Iterator[Row]:
        """Do for data in memory what `inputs_of` does for files: see `in_memory.rows_of`."""
        return rows_of(given, self.inputs(data), data)

    def windows(self, run: Any, rows: Iterable[Row]) -> Iterator[list[Row]]:
        """Rows that are computed together: see the function `windows`."""
        return windows(rows)

    @abstractmethod
    def predict(self, run: Any, rows: Iterable[Row]) -> Iterator[Prediction]:
        """Yield a prediction for each row, in order, or why it is missing; memory must not grow with the rows.

        The rows have the columns of `inputs`. What `rows` raises is raised after the predictions for what was read
        before. `run.prediction` of a run has the task's `prediction_options`, if any were given.
        """

    def formats(self) -> Mapping[str, Callable[[Any], str]]:
        """Writers of predictions in formats other than JSON lines, by name; by default none."""
        return {}

    def format_options(self) -> Mapping[str, Mapping[str, Any]]:
        """Return the prediction options that formats need, by the name of the format; by default none need any."""
        return {}


@dataclass(frozen=True)
class Answers:
    """Reading of rows as a program's inputs, and of its outputs as answers: what `export.json` says of them.

    Attributes:
        labels: Names of the outputs.
        data: Settings of `[data]`, those of `Answering.reading`.
        limits: The most tokens that each part of the model takes.
    """

    labels: list[str]
    data: dict[str, Any]
    limits: dict[str, int]

    def __post_init__(self) -> None:
        if not self.labels or len(set(self.labels)) < len(self.labels):
            raise UserError(f"labels must be different names, got {len(self.labels)}; restore them.")
        if not all(type(most) is int and most > 0 for most in self.limits.values()):
            raise UserError("limits must be numbers of tokens, got something else; restore them.")


class Answering(Inference):
    """Reading of rows as a program's inputs, and of its outputs as predictions.

    A task whose exports predict in a way of their own has one in its module `program`, which imports no PyTorch. Its
    methods get a `longspan.programs.predicting.Program`.

    Args:
        answers: An instance of `answers`.
        folder: The export.
        tokenizer: Its tokenizer, of `tokenizers`.

    Attributes:
        answers: Class of what `export.json` says.
        data_config: Class of the settings of `[data]`.
        reading: Those settings that say how files are read; the others name files.
        false_alarms: Share of validation texts that are unfamiliar.
    """

    answers: ClassVar[type]
    data_config: ClassVar[type[DataConfig]] = DataConfig
    reading: ClassVar[Sequence[str]]
    false_alarms = 0.0

    @abstractmethod
    def __init__(self, answers: Any, folder: Path, tokenizer: Any) -> None: ...


def characters(row: Row) -> int:
    """Number of characters in a row's texts."""
    return sum(len(value) for value in row.values.values() if isinstance(value, str | list))


def windows(
    rows: Iterable[Row],
    size: Callable[[Row], int] = characters,
    most: int | None = None,
    alone: Callable[[Row], bool] = lambda row: False,
) -> Iterator[list[Row]]:
    """Rows in windows of limited size; what `rows` raises is raised after the window of what was read before.

    Args:
        rows: The rows.
        size: Number of characters of a row, which are limited.
        most: Number of rows in a window; by default `WINDOW_EXAMPLES`.
        alone: Whether a row is a window of its own.
    """
    window: list[Row] = []
    total, failure = 0, None
    remaining = iter(rows)
    while True:
        try:
            row = next(remaining, None)
        except Exception as error:
            row, failure = None, error
        single = row is not None and alone(row)
        if window and (row is None or single):
            yield window
            window, total = [], 0
        if row is None:
            break
        window.append(row)
        total += size(row)
        if single or len(window) >= (most or WINDOW_EXAMPLES) or total >= WINDOW_CHARACTERS:
            yield window
            window, total = [], 0
    if failure is not None:
        raise failure
