"""What turns items and users into numbers: `ItemProcessor`, and the names that the numbers replace."""

import dataclasses
import typing
from dataclasses import dataclass
from pathlib import Path

from longspan.data.processor import json_object
from longspan.data.text.processor import TextProcessor
from longspan.errors import UserError
from longspan.errors.hints import matches
from longspan.results.outputs import write_json
from longspan.tasks.base import Run
from longspan.tasks.recommendation.items import Names

_FILE = "names.json"


@dataclass(frozen=True)
class ItemProcessor(TextProcessor):
    """Texts of items as tokens, and their categories and entities, and users, as numbers.

    Attributes:
        names: The names that the numbers replace.
    """

    files = ("tokenizer_config.json", _FILE)

    names: Names

    def save_pretrained(self, folder: str | Path) -> None:
        super().save_pretrained(folder)
        write_json(Path(folder, _FILE), dataclasses.asdict(self.names))

    @classmethod
    def from_pretrained(cls, folder: str | Path) -> "ItemProcessor":
        path, hints = Path(folder, _FILE), typing.get_type_hints(Names)
        # Those of earlier versions count no clicks.
        values = {"items": [], **json_object(path)}
        if values.keys() != hints.keys() or not all(matches(value, hints[name]) for name, value in values.items()):
            raise UserError(f"expected the names of categories, entities and users in {str(path)!r}; restore it.")
        return cls(TextProcessor.from_pretrained(folder).tokenizer, Names(**values))


def names_of(run: Run) -> Names:
    """Return the names of the rows of a model's tables. Raises UserError if their number differs."""
    assert isinstance(run.processor, ItemProcessor)
    names, head = run.processor.names, run.model.config.head
    for what, count in names.settings().items():
        if getattr(head, what) != count:
            raise UserError(
                f"expected {_FILE} of {str(run.folder)!r} to fit its config.json with {what}={getattr(head, what)}, "
                f"got {count}; restore either file."
            )
    return names
