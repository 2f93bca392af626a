"""Baselines of a package, found by their files: `baselines_in`; those over another model: `ModelBaseline`."""

import abc
import hashlib
import importlib
import inspect
import re
from dataclasses import dataclass
from types import ModuleType
from typing import Any, ClassVar, Generic

from longspan.machine.imports import modules_in
from longspan.results.scores import S
from longspan.tasks.recipe import Recipe, Run


@dataclass(frozen=True)
class Fitted(Generic[S]):
    """A baseline that was fitted.

    Attributes:
        scores: Its scores on the validation split and, where there is one, the test split.
        chosen: The settings that were chosen on the validation split, as JSON.
        parameters: How many numbers it has learned.
    """

    scores: dict[str, S]
    chosen: dict[str, Any]
    parameters: int


class Baseline(abc.ABC, Generic[S]):
    """A method without a sequence model, which `longspan compare` adds to the table of the mixers.

    The first line of a subclass's docstring says in one sentence what it does.
    """

    #: The packages that it imports and longspan itself does without, when `fit` is called.
    packages: ClassVar[tuple[str, ...]] = ()
    #: Whether the recipe's epochs and time budget are also its own.
    trains: ClassVar[bool] = False

    @classmethod
    def summary(cls) -> str:
        """Return what it does, in one sentence."""
        return (inspect.getdoc(cls) or "").partition("\n")[0]

    @abc.abstractmethod
    def fit(self, recipe: Recipe) -> Fitted[S]:
        """Fit on the training split of a recipe, choose settings on its validation split, and score.

        The splits are those of the recipe's runs, and scores are those that a run with equal outputs would get.

        Raises:
            UserError: For whatever is wrong with the data.
        """


class ModelBaseline(Baseline[S]):
    """A baseline over a pretrained model, which `--baselines` names after a colon: "embeddings:MODEL".

    Subclasses check in `__init__` that the model can be used, and read it in `fit`.

    Args:
        model: What is after the colon.

    Attributes:
        source: What tells its model from others, whatever the current directory is; by default `model`.

    Raises:
        UserError: There is no such model on this machine, or a package that it needs is not installed.
    """

    #: A model that messages name.
    example: ClassVar[str] = "MODEL"

    def __init__(self, model: str) -> None:
        self.model = self.source = model

    def label(self) -> str:
        """Return a short name of the model for files, with a digest that tells it from others."""
        last = re.split(r"[/\\]", self.source.rstrip("/\\"))[-1]
        readable = re.sub(r"[^\w.-]", "_", last, flags=re.ASCII)[:40]
        return f"{readable}-{hashlib.sha256(self.source.encode()).hexdigest()[:8]}"


class RunBaseline(ModelBaseline[S]):
    """A baseline over a run of another task, which `--baselines` names after a colon: "evidence:RUN".

    Args:
        model: What is after the colon, a run folder.
        run: That run, loaded.
    """

    def __init__(self, model: str, run: Run) -> None:
        super().__init__(model)
        self.run, self.source = run, str(run.folder.absolute())


def baselines_in(package: ModuleType) -> dict[str, type[Baseline]]:
    """Return the baselines of a package by name: each file has a class of its name in CamelCase.

    Files whose names begin with "_" hold what they share.
    """
    return {
        name: getattr(importlib.import_module(f"{package.__name__}.{name}"), name.title().replace("_", ""))
        for name in modules_in(*package.__path__)
    }
