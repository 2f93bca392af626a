"""A task of the Long Range Arena, and how its three files are written: `Challenge`."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

from longspan.errors import UserError, check_choice
from longspan.results.outputs import write_json, write_json_lines

SPLITS = ("train", "validation", "test")
ABOUT = "about.json"
"""The file that is written last: a folder that has it is complete."""

Row = Mapping[str, str]
"""An example: the keys are `text` and `label`, or `first`, `second` and `label`."""


class Data(ABC):
    """The examples of a challenge, generated or read one at a time."""

    @abstractmethod
    def size(self, split: str) -> int | None:
        """Number of examples that `rows` gives; None if only reading them tells."""

    @abstractmethod
    def rows(self, split: str) -> Iterator[Row]:
        """Yield the examples of a split, in random order.

        Raises:
            UserError: A file cannot be read.
        """

    def facts(self) -> dict[str, Any]:
        """Return more for `about.json`, once all rows have been read."""
        return {}


class Drawn(Data):
    """Examples that are drawn from the random stream of a seed: as many of each split as `sizes` says."""

    def __init__(self, seed: int, sizes: Mapping[str, int]) -> None:
        self.seed, self.sizes = seed, sizes

    def size(self, split: str) -> int:
        return self.sizes[split]


class Challenge(ABC):
    """One task of the arena."""

    #: Its name on the command line, such as "listops".
    name: ClassVar[str]
    #: One sentence for help and tables.
    description: ClassVar[str]
    #: One phrase that says what the user's data must be; empty if the data are generated.
    needs: ClassVar[str] = ""
    #: Positions of the longest example; of the longest text if an example has two.
    length: ClassVar[int]
    #: The recipe of its models.
    recipe: ClassVar[str] = "arena"
    #: What it changes in the recipe.
    settings: ClassVar[tuple[str, ...]] = ()
    #: The column of inputs that pretraining reads.
    column: ClassVar[str] = "text"

    @abstractmethod
    def open(self, given: Path | None, seed: int, sizes: Mapping[str, int]) -> Data:
        """Return the examples. Each split has a random stream of its own, whatever the sizes of the others.

        Args:
            given: The user's data; None if the data are generated.
            seed: Seed of all random choices.
            sizes: Numbers of examples by split, for the splits that are smaller than usual.

        Raises:
            UserError: The user's data are of another form, or have fewer examples than `sizes` asks for.
        """

    def write(self, folder: Path, given: Path | None, *, seed: int = 0, sizes: Mapping[str, int] | None = None) -> None:
        """Write `train.jsonl`, `validation.jsonl`, `test.jsonl` and, last, `about.json`, in place of those there.

        Args:
            folder: Where to write; made if it is missing.
            given: The user's data; None if the data are generated.
            seed: Seed of all random choices, 0 or more.
            sizes: Numbers of examples by split; splits that it does not name have their usual size.

        Raises:
            UserError: An argument is wrong, or a file cannot be read.
        """
        self._check(given, seed, sizes or {})
        data = self.open(given, seed, sizes or {})
        _make(folder)
        # Until all is written, the folder is not complete.
        (folder / ABOUT).unlink(missing_ok=True)
        counts = {split: _write(folder / f"{split}.jsonl", data, split) for split in SPLITS}
        about = {
            "challenge": self.name,
            "description": self.description,
            "source": None if given is None else str(given.absolute()),
            "seed": seed,
            "sizes": dict(sizes) if sizes else None,
            "examples": counts,
            **data.facts(),
        }
        write_json(folder / ABOUT, about)

    def _check(self, given: Path | None, seed: int, sizes: Mapping[str, int]) -> None:
        if given is not None and not self.needs:
            raise UserError(f"expected no data for {self.name}, as it is generated, got {str(given)!r}; leave it out.")
        if given is None and self.needs:
            raise UserError(f"expected data for {self.name}, got none; name {self.needs}.")
        if seed < 0:
            raise UserError(f"expected a seed of 0 or more, got {seed}; choose another.")
        for split, size in sizes.items():
            check_choice("split", split, SPLITS)
            if size < 1:
                raise UserError(
                    f"expected at least 1 example for the split {split!r}, got {size}; choose a larger size."
                )


def stream(seed: int, *names: str) -> random.Random:
    """Return the random stream of a seed and some names, the same on every machine."""
    return random.Random(" ".join((str(seed), *names)))


def examples_to_write(sizes: Mapping[str, int], split: str, there: int) -> int:
    """Number of a split's examples to write; raise UserError if it has fewer than asked for."""
    size = sizes.get(split, there)
    if size > there:
        raise UserError(
            f"expected at least {size:,} examples in the split {split!r}, got {there:,}; ask for fewer, or add data."
        )
    return size


def _make(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise UserError(f"expected a folder to write to at {str(folder)!r}, got a file; choose another.") from None


def _write(path: Path, data: Data, split: str) -> int:
    from datasets.utils import tqdm

    rows: Iterator[Row] = tqdm(
        data.rows(split), total=data.size(split), desc=f"Writing {path.name}", unit="example", leave=False
    )
    return write_json_lines(path, rows)
