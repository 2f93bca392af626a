"""Result of `longspan.testing.check_model`: `ModelReport`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from longspan.results.base import Result, tabled

Outcome = Literal["passed", "failed", "refused", "not claimed", "not applicable"]


@dataclass(frozen=True)
class Checked(Result):
    """A check of a model.

    Attributes:
        check: Name of the check.
        outcome: One of five. "passed". "failed": it deviates, or ended with an error. "refused": the model raises an
            error that says it cannot do this. "not claimed": it deviates, and does not claim otherwise.
            "not applicable": there is nothing to check.
        promise: Checked promise, in a sentence.
        deviation: The largest difference, relative to the largest output; infinite where an output is not finite, None
            where nothing was compared.
        tolerance: The largest deviation that passes; None where finite outputs are all that is asked for.
        where: Where the largest deviation was found, such as "sdpa, batch size 1".
        reason: The error, or why it is not claimed or not applicable.
    """

    check: str
    outcome: Outcome
    promise: str
    deviation: float | None = None
    tolerance: float | None = None
    where: str = ""
    reason: str = ""

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON. An infinite deviation is the text "inf"."""
        return super().to_dict() | ({"deviation": "inf"} if self.deviation == float("inf") else {})


@dataclass(frozen=True)
class ModelReport(Result):
    """The checks of a model.

    Attributes:
        model: Checked model: a model type, a folder or a class.
        architecture: Name of the class.
        task: "causal", "masked" or "seq2seq".
        attentions: Attention implementations that were checked.
        checks: The checks, in order.
        parameters: Number of parameters of the tiny model.
        seconds: How long the checks took.
        versions: Versions of the packages.
    """

    model: str
    architecture: str
    task: str
    attentions: Sequence[str]
    checks: Sequence[Checked] = field(metadata=tabled("check", "outcome", "deviation", "tolerance", "where", "reason"))
    parameters: int = 0
    seconds: float = 0.0
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def failed(self) -> list[Checked]:
        """The checks that failed."""
        return [check for check in self.checks if check.outcome == "failed"]

    def of(self, name: str) -> Checked | None:
        """Return one check; None if it did not run."""
        return next((check for check in self.checks if check.check == name), None)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON, with the number of failed checks."""
        return super().to_dict() | {"failed": len(self.failed)}
