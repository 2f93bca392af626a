"""Result of `longspan.plan`: `Forecast`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from longspan.results.base import Result, tabled


@dataclass(frozen=True)
class RunForecast:
    """Costs of a training run.

    Attributes:
        mixer: Its mixers, "a+b" for a hybrid of two.
        length: Value of the recipe's key for the length, see `Forecast.length_key`; None where the task has none.
        positions: Padded length of the longest row.
        seconds_per_step: Mean time of an optimizer step.
        tokens_per_second: Real tokens per second, without padding.
        peak_memory_bytes: Most memory, of the process or of the GPU, with the margin.
        fits: Whether there is so much memory; None if the system does not say how much there is.
        steps: Number of optimizer steps.
        epochs: The same number in passes over the training data.
        seconds: Time of the training with its validations and checkpoints, without reading the data.
        validations: Number of validations.
        seconds_per_validation: Time of each.
        measured: Whether the longest batch was measured, rather than extrapolated from shorter ones.
    """

    mixer: str
    length: int | None
    positions: int
    seconds_per_step: float
    tokens_per_second: float
    peak_memory_bytes: int
    fits: bool | None
    steps: int
    epochs: float
    seconds: float
    validations: int
    seconds_per_validation: float
    measured: bool


@dataclass(frozen=True)
class Suggestion:
    """Settings of a mixer that fit into memory.

    Attributes:
        mixer: The mixer.
        overrides: `key=value` words for `longspan train`, the largest that fit; empty if nothing fits.
        needed: Whether the recipe does not fit without them.
    """

    mixer: str
    overrides: Sequence[str]
    needed: bool


@dataclass(frozen=True)
class Forecast(Result):
    """Costs of training runs of a recipe on this machine.

    Attributes:
        recipe: Name of the recipe.
        task: Name of its task.
        length_key: The key that sets the length, such as "data.max_length"; "" where the task has none.
        longest: Padded length of the longest row of the data, as far as the recipe reads it.
        memory_bytes: Memory that there is; None if the system does not say.
        device: "cpu", or the name of the GPU.
        runs: A row for each mixer and length.
        cheaper_from: For each mixer but softmax, the length in positions from which on it takes less time per position
            than softmax. Batches are full. 0 means at all lengths, None at none.
        suggestions: Batch size and length that fit, for each mixer.
        seconds: How long reading and measuring took.
    """

    recipe: str
    task: str
    length_key: str
    longest: int
    memory_bytes: int | None
    device: str
    runs: Sequence[RunForecast] = field(metadata=tabled())
    cheaper_from: Mapping[str, int | None]
    suggestions: Sequence[Suggestion]
    seconds: float

    def of(self, mixer: str, length: int | None = None) -> RunForecast:
        """Return the row of a mixer and a length, by default its last one. Raises KeyError if there is none."""
        found = [run for run in self.runs if run.mixer == mixer and length in (None, run.length)]
        if not found:
            raise KeyError((mixer, length))
        return found[-1]
