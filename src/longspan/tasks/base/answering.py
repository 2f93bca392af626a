"""Predictions of a task by an exported program, without PyTorch: `Answering`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar

import numpy as np

from longspan.data.columns.kinds import Column
from longspan.data.config import DataConfig
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.results import Prediction

#: Size of a window: rows that are read, grouped by length and answered at a time.
WINDOW_EXAMPLES = 512
WINDOW_CHARACTERS = 1_000_000

#: Function that runs a program: its inputs by name to its output, whose numbers are finite.
Runner = Callable[[Mapping[str, np.ndarray]], np.ndarray]


class Damaged(Exception):
    """Contents of an export that cannot be used, in words that follow "got"."""


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


class Answering(ABC):
    """Reading of rows as a program's inputs, and of its outputs as predictions.

    A task whose exports predict in a way of their own has one in its module `program`, which imports no PyTorch.

    Args:
        answers: An instance of `answers`.
        folder: The export.
        tokenizer: Its tokenizer, of `tokenizers`.

    Attributes:
        answers: Class of what `export.json` says.
        data_config: Class of the settings of `[data]`.
        reading: Those settings that say how files are read; the others name files.
        prediction: Class of the predictions.
        labels: Names of the classes whose probabilities they have, in order.
        formats: See `Task.formats`.
        annotation_formats: See `Task.annotation_formats`.
        together: Number of rows that are computed together; their windows are `windows(rows, most=together)`.
        false_alarms: Share of validation texts that are unfamiliar.
    """

    answers: ClassVar[type]
    data_config: ClassVar[type[DataConfig]] = DataConfig
    reading: ClassVar[Sequence[str]]
    formats: ClassVar[Mapping[str, Callable[[Any], str]]] = MappingProxyType({})
    annotation_formats: ClassVar[Mapping[str, bool]] = MappingProxyType({})
    prediction: type[Prediction]
    labels: Sequence[str] = ()
    together: ClassVar[int] = 1
    false_alarms = 0.0

    @abstractmethod
    def __init__(self, answers: Any, folder: Path, tokenizer: Any) -> None: ...

    @abstractmethod
    def columns(self, data: Any) -> Sequence[Column]:
        """The columns that are read."""

    @abstractmethod
    def predict(self, rows: Iterable[Row], data: Any, run: Runner) -> Iterator[Prediction]:
        """Yield a prediction for each row, in order, or why it is missing.

        Raises:
            Damaged: The program's outputs are of another shape.
        """


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
