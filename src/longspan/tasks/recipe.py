"""What the verbs hand a task: a `Recipe`, and a `Run` trained with one."""

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import tomli_w
from transformers import PreTrainedModel

from longspan.data.config import SourceData
from longspan.data.processor import Processor
from longspan.errors import UserError
from longspan.tasks.options import TrainingOptions

if TYPE_CHECKING:
    from longspan.tasks.base import Task

#: What a task's `[data]` and the keys that it adds to `[training]` become.
D = TypeVar("D", bound=SourceData)
O = TypeVar("O", bound=TrainingOptions)  # noqa: E741


def _usual() -> Any:
    return TrainingOptions()


@dataclass(frozen=True)
class Recipe(Generic[D, O]):
    """One complete run.

    Attributes:
        name: Name of the recipe, for the run folder and messages.
        task: What is learned.
        data: Where examples come from and how they become tokens, a `task.data_config`.
        model: Arguments of `LongspanConfig`, without those that depend on the data.
        start_from: The run folder whose processor, embeddings and layers it starts with; "" for a new model. What the
            recipe leaves open of these, `longspan.recipes.load` fills in.
        training: Arguments of `transformers.TrainingArguments`, defaults filled in.
        options: The keys of `[training]` that longspan and the task add, a `task.training_options`.
        description: One or two sentences for people.
    """

    name: str
    task: "Task"
    data: D
    model: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    options: O = field(default_factory=_usual)
    description: str = ""
    start_from: str = ""

    def to_toml(self) -> str:
        """Return the resolved recipe as TOML. Every field of `[data]` and `[training]` is spelled out, so that a later
        change of defaults does not change this run. `longspan.recipes.load` reads it back as an equal recipe, except
        for the name, which is the file's."""
        tables = {
            "task": self.task.name,
            "description": self.description,
            "data": dataclasses.asdict(self.data),
            "model": ({"start_from": self.start_from} if self.start_from else {}) | self.model,
            "training": self.training | dataclasses.asdict(self.options),
        }
        return tomli_w.dumps(_without_none(tables))

    def reading(self, data: Any) -> "Recipe[D, O]":
        """Return the recipe with other data: see `Task.reading`."""
        return dataclasses.replace(self, data=self.task.reading(self.data, data))

    def require_data(self) -> None:
        """Raise `UserError` if the recipe does not say where its examples come from."""
        if not self.data.path and not self.data.train:
            if given := [name for name in ("validation", "test") if getattr(self.data, name)]:
                raise UserError(
                    f"recipe {self.name!r} expected training data, got only a {given[0]} split; add a split 'train' "
                    "(data.train)."
                )
            raise UserError(f"recipe {self.name!r} expected {self.task.data_hint}, got neither; set one of them.")


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    """Leave out None, also in nested tables: TOML has no null."""
    return {
        key: _without_none(value) if isinstance(value, dict) else value
        for key, value in table.items()
        if value is not None
    }


@dataclass(frozen=True)
class Run(Generic[D, O]):
    """A trained model with everything needed to use it.

    Attributes:
        folder: The run folder.
        model: The model, in evaluation mode, on the accelerator if there is one.
        processor: What turns examples into its inputs.
        recipe: The resolved recipe it was trained with.
        checkpoint: The step after which the model was saved, if it is that of a checkpoint.
        prediction: How predictions are made, the task's `prediction_options`; None for its defaults.
    """

    folder: Path
    model: PreTrainedModel
    processor: Processor
    recipe: Recipe[D, O]
    checkpoint: int | None = None
    prediction: Any = None

    @property
    def task(self) -> "Task":
        """What it was trained for."""
        return self.recipe.task
