"""A column of the sentences of documents: `Sentences`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longspan.data.columns.kinds import Column
from longspan.data.columns.literals import list_in
from longspan.data.columns.values import WrongColumn, number


@dataclass(frozen=True)
class Sentences(Column):
    """Number of words of each sentence of a document: integers that add up to the document's number of words.

    Attributes:
        of: The name of the `Words` column.
    """

    required: bool = field(default=False, kw_only=True)
    of: str = field(default="tokens", kw_only=True)
    kind = "a list of numbers of words"
    identifies = False

    @property
    def feature(self) -> Any:
        from datasets import List, Value

        return List(Value("int64"))

    def parse(self, cell: Any, folder: Path) -> list[int]:
        items = list_in(cell) if isinstance(cell, str) else cell
        if not isinstance(items, list):
            raise WrongColumn
        found = [number(item, self._bad_cell) for item in items]
        if any(item < 0 or item != int(item) for item in found):
            raise self._bad_cell("another number among them")
        return [int(item) for item in found if item]

    def check(self, values: Mapping[str, Any]) -> str:
        sizes, words = values[self.name], values[self.of]
        if sizes is None or not isinstance(words, list) or sum(sizes) == len(words):
            return ""
        return f"{self.name} do not add up to {self.of} (expected {len(words)}, got {sum(sizes)})"
