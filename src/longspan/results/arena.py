"""Result of `longspan.arena`: `Arena`."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from longspan.results import ComparedRun
from longspan.results.base import Result, figures, merged, tabled

Start = Literal["scratch", "pretrained"]


@dataclass(frozen=True)
class ArenaRun(Result):
    """A mixer on one challenge.

    Attributes:
        challenge: Name of the challenge.
        start: Whether the model started from random weights, or from masked symbols of the challenge's training inputs.
        control: Whether it is the control, layers of short convolutions.
        score: Accuracy on the test split; None for a run that failed.
        run: The run, with all scores and costs, or its error.
        chance: Accuracy of guessing among equally frequent classes; None for a run that failed.
    """

    challenge: str
    start: Start
    control: bool
    score: float | None = field(metadata=merged(lambda _, score: {"accuracy": score}))
    run: ComparedRun = field(metadata=merged())
    chance: float | None = None


@dataclass(frozen=True)
class Arena(Result):
    """Result of `longspan.arena`, in `arena.json`.

    Attributes:
        folder: Where the runs are.
        minutes: Time for each training.
        overrides: Changes to the recipes.
        runs: A row for each challenge, start and mixer.
    """

    folder: str = field(metadata=figures("arena.png"))
    minutes: float
    overrides: Sequence[str]
    runs: Sequence[ArenaRun] = field(metadata=tabled("challenge", "start", "mixer", "accuracy"))

    @property
    def challenges(self) -> list[str]:
        """The names of the challenges, in order."""
        return list(dict.fromkeys(run.challenge for run in self.runs))

    @property
    def mixers(self) -> list[str]:
        """The names of the mixers, in order, the control last."""
        return list(dict.fromkeys(run.run.mixer for run in sorted(self.runs, key=lambda run: run.control)))

    @property
    def controls(self) -> set[str]:
        """The names of mixers that are controls."""
        return {run.run.mixer for run in self.runs if run.control}

    def of(self, challenge: str, start: Start, mixer: str) -> ArenaRun | None:
        """Return one run; None if it has not been made."""
        wanted = (challenge, start, mixer)
        found = (run for run in self.runs if (run.challenge, run.start, run.run.mixer) == wanted)
        return next(found, None)

    def errors(self) -> list[str]:
        """Say which runs failed, and why."""
        return [
            f"{run.challenge}, {run.run.mixer}, {run.start}, failed: {run.run.error}"
            for run in self.runs
            if run.run.error is not None
        ]
