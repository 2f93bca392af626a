"""Conversion of examples to the streams that a model reads, saved with the model: `Processor`."""

import dataclasses
import hashlib
import json
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
from datasets import Dataset
from transformers import PreTrainedModel

from longspan import options
from longspan.data.batches.streams import Stream
from longspan.data.columns.kinds import Column
from longspan.errors import UserError
from longspan.results.outputs import json_object, write_json

P = TypeVar("P", bound="Processor")


class Unreadable(UserError):
    """An example that cannot be read: its prediction says why, and the others are made; in training it is a bad row."""


@dataclasses.dataclass(frozen=True)
class Encoded:
    """An example as streams.

    Attributes:
        streams: By name, (t,) or (t, width).
        removed: Number of positions of its streams that were left out, as `data.max_length` asks.
    """

    streams: Mapping[str, Any]
    removed: int = 0


@dataclasses.dataclass(frozen=True)
class Places:
    """Positions of an example, as people see them.

    Attributes:
        unit: Unit of `spans`: "characters", "seconds", "pixels", "nodes" or "clicks".
        spans: (t, 2) from where to before where each position is. Of pixels (t, 4): row, column, height and width; of
            characters, both are -1 for positions that stand for none.
        text: The text whose characters these are.
        names: Name of each position, where it has one.
        image: The image whose patches these are, as the model reads it, in a PNG file.
    """

    unit: str
    spans: np.ndarray
    text: str = ""
    names: Sequence[str] = ()
    image: bytes = b""


class Processor(ABC):
    """Examples of one kind as streams.

    A subclass that is a frozen dataclass of numbers, texts and lists of them is saved as JSON; any other one says how
    to save and load it. Nothing in the files of one is executed.
    """

    #: The files that a folder with one has.
    files: ClassVar[tuple[str, ...]] = ("processor.json",)
    #: What progress bars call its work.
    work: ClassVar[str] = "Reading"
    #: Whether it reads whatever its columns contain, so that it never raises `Unreadable`.
    reads_all: ClassVar[bool] = False

    @property
    @abstractmethod
    def streams(self) -> Mapping[str, Stream]:
        """The streams of a batch by name, the main one first: an example is as long as that one."""

    @classmethod
    @abstractmethod
    def columns(cls, data: Any) -> Sequence[Column]:
        """Return the columns that it reads, where `data` is the recipe's `[data]`."""

    @classmethod
    def learned(cls: type[P], training: Dataset, data: Any) -> P:
        """Return one for the examples of a training split.

        Raises:
            Unreadable: An example cannot be read.
            UserError: For what else is wrong with them.
        """
        return cls()

    @abstractmethod
    def encode(self, rows: Mapping[str, Sequence[Any]], data: Any) -> list[Encoded]:
        """Return examples as streams, where `rows` has a list for each column.

        Raises:
            Unreadable: An example cannot be read.
            UserError: The settings in `data` do not fit.
        """

    def places(self, values: Mapping[str, Any], encoded: Encoded, data: Any) -> Places:
        """Positions of an encoded row, as people see them.

        Raises:
            UserError: It does not say.
        """
        raise UserError(
            f"expected a processor that says what its positions are (`Processor.places`), got {type(self).__name__}; "
            "add it, or explain an example of another task."
        )

    def placed(self, values: Mapping[str, Any], data: Any) -> tuple[Encoded, Places]:
        """Return a row as streams, and what its positions are: by default, `encode`, then `places`.

        Raises:
            UserError: See `encode` and `places`.
        """
        (encoded,) = self.encode({column.name: [values.get(column.name)] for column in self.columns(data)}, data)
        return encoded, self.places(values, encoded, data)

    def problem(self, values: Mapping[str, Any]) -> str:
        """Return why nothing can be said about the values of a row, in a few words; "" if there is no reason."""
        return ""

    def remark(self, validation: Any) -> str:
        """Oddity of encoded examples of the validation split, in one sentence; by default, nothing: "".

        Args:
            validation: Data of the trainer: mostly a `datasets.Dataset` with the streams as columns.
        """
        return ""

    def with_familiarity(self: P, training: Dataset, validation: Dataset) -> P:
        """This processor, able to recognise `unfamiliar` examples, given encoded splits; by default as it is."""
        return self

    def unfamiliar(self, streams: Mapping[str, Any]) -> bool:
        """Whether an encoded example is unlike the training data, as far as that is known."""
        return False

    @property
    def false_alarms(self) -> float:
        """Share of validation examples that are `unfamiliar`."""
        return 0.0

    def settings(self, model: Mapping[str, Any]) -> dict[str, Any]:
        """Return the settings of a model, given the recipe's `[model]`, that depend on what it reads."""
        return {}

    @classmethod
    def check(cls, model: Mapping[str, Any], data: Any) -> None:
        """Raise UserError, before any data are read, if a recipe's `[model]` names something that cannot be read."""

    def check_continues(self, other: "Processor", run: str) -> None:
        """Raise UserError unless a model that read what `other` gave, in the folder `run`, can read what this gives."""
        if self.fingerprint() != other.fingerprint():
            raise UserError(
                f"expected data with the same inputs as those of {run!r}, from which the model starts, got others; "
                "start from another run, or train a new model."
            )

    def load_vectors(self, model: PreTrainedModel, path: Path) -> int:
        """Fill a model's word vectors from a file, and return how many there are. Raises UserError if it cannot."""
        raise UserError(f"expected training.word_vectors for a task that reads words, got {str(path)!r}; leave it out.")

    def introduce(self, model: PreTrainedModel) -> None:
        """Tell a new model what it should know of what it reads."""

    @property
    def slow(self) -> bool:
        """Whether a process for each core is worth it where there are many examples."""
        return False

    def facts(self, data: Any) -> Any:
        """Settings of `data` that `encode` reads, as JSON."""
        return dataclasses.asdict(data)

    def fingerprint(self) -> str:
        """Return a hash of everything that `encode` depends on besides `data`."""
        facts = [type(self).__module__, type(self).__qualname__, self._values()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def save_pretrained(self, folder: str | Path) -> None:
        """Save it in a folder."""
        write_json(Path(folder, self.files[0]), self._values())

    @classmethod
    def from_pretrained(cls: type[P], folder: str | Path) -> P:
        """Return the one that was saved in a folder. Raises UserError if its files are damaged or those of another."""
        path = Path(folder, cls.files[0])
        values = json_object(path)
        needed = {
            field.name
            for field in dataclasses.fields(cls)  # type: ignore[arg-type]
            if options.default(field) is options.REQUIRED
        }
        # Those with a default came later than the runs that lack them.
        if not needed <= values.keys() <= options.hints(cls).keys():
            raise UserError(f"expected what a {cls.__name__} saved in {str(path)!r}, got something else; restore it.")
        try:
            found = options.make(cls, values, f"a {cls.__name__}")
            options.check(found)
            found.check_values()
        except UserError as error:
            raise UserError(f"{str(path)!r} does not describe inputs of a model: {error}") from error
        return found

    def check_values(self) -> None:
        """Raise UserError for values of a file, each in its range, that do not fit each other."""

    def check_model(self, config: Any, folder: str | Path) -> None:
        """Raise UserError unless the model of a folder, given its `LongspanConfig`, reads the streams of this."""
        made = {"mixers": config.mixers, "mixer_options": config.mixer_options}
        for name, value in self.settings(made).items():
            wanted = getattr(config.embeddings, name, getattr(config, name, value))
            # A converted model may leave open which token is padding.
            if wanted is not None and wanted != value:
                raise UserError(
                    f"{self.files[0]} does not fit config.json in {str(folder)!r}: expected inputs for a model with "
                    f"{name}={reprlib.repr(wanted)}, got {reprlib.repr(value)}; restore either file."
                )

    def _values(self) -> dict[str, Any]:
        return dataclasses.asdict(self)  # type: ignore[call-overload]
