"""How the parts of a model compare, for the model that training keeps: `PartScores`."""

from collections.abc import Callable
from typing import Any

from datasets import Dataset

from longspan.results.parts import Parts


class PartScores:
    """Part of a trainer: remembers what compares a model's parts on the validation split, after each step it scored.

    Attributes:
        model_step: After which step the weights were saved that the model has now.
    """

    eval_dataset: Any
    state: Any
    kept_step: Callable[[], int]

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._loaded_step: int | None = None
        self._by_step: dict[int, Callable[[], Parts]] = {}
        self._of_test: Callable[[], Parts] | None = None

    @property
    def model_step(self) -> int:
        step: int = self.state.global_step if self._loaded_step is None else self._loaded_step
        return step

    def has_kept(self) -> None:
        """Take note that training is over and the model has the weights that were kept."""
        self._loaded_step = self.kept_step()

    def remember_parts(self, dataset: Dataset, compare: Callable[[], Parts]) -> None:
        """Take in what compares the parts on a data set; it is called, if at all, when training is over."""
        if dataset is self.eval_dataset:
            self._by_step[self.model_step] = compare
        else:
            self._of_test = compare

    def details(self) -> dict[str, Any]:
        """Return what else results should say about the model that was kept: by default, how its parts compare.

        They are "parts" on the validation and "test_parts" on the test split; nothing for a model of one part.
        """
        found = {"parts": self._by_step.get(self.kept_step()), "test_parts": self._of_test}
        return {name: compare().to_dict() for name, compare in found.items() if compare is not None}
