"""The count-based model of a task, which its models may contain as their wide part: `Counts`."""

import abc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedModel

from longspan.results.scores import S
from longspan.tasks.baselines import Baseline
from longspan.tasks.prepared import Prepared
from longspan.tasks.recipe import Recipe


@dataclass(frozen=True)
class Counted:
    """A count-based model fitted to the training split, ready to become the wide part of a model.

    Attributes:
        settings: Settings of the model that depend on it, such as the size of its tables.
        enter: Puts what was fitted into a new model with these settings.
    """

    settings: dict[str, Any]
    enter: Callable[[PreTrainedModel], None]


class Counts(Baseline[S]):
    """A count-based model: a baseline of `longspan compare`, and the wide part of models with `model.wide`.

    It is fitted before the network. What the network reads of it in training is cross-fitted: fitted to other training
    examples. The validation split chooses the weights of both.
    """

    @abc.abstractmethod
    def count(self, recipe: Recipe, prepared: Prepared) -> Counted:
        """Fit to the training split that was prepared for a model.

        Raises:
            UserError: For whatever is wrong with the data, or sizes that do not fit into memory.
        """
