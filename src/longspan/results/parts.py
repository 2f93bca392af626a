"""What the parts of a model do alone and together, with intervals: `Parts`, made by `compare_parts`."""

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from longspan.errors import UserError

if TYPE_CHECKING:
    import numpy as np

#: The wide part alone, the rest of the model alone, and the whole model.
COUNTS, NETWORK, BOTH = NAMES = ("counts", "network", "both")
#: Draws of a bootstrap, and how many of them are in memory at once.
_DRAWS, _AT_ONCE = 1000, 50

Interval = tuple[float, float]


@dataclass(frozen=True)
class Parts:
    """A score of count-based part, network and both on the same examples, with 95 % bootstrap intervals.

    Attributes:
        score: Name of the score.
        higher_is_better: Whether larger values are better.
        values: The score of each of `NAMES`.
        intervals: The interval of each.
        gains: By "counts" and "network", the interval of how much better both are than that part alone; below 0 where
            they are worse.
    """

    score: str
    higher_is_better: bool
    values: dict[str, float]
    intervals: dict[str, Interval]
    gains: dict[str, Interval]

    def best(self) -> str:
        """Return which of `NAMES` has the best value; of equal ones the last."""
        sign = 1 if self.higher_is_better else -1
        return max(reversed(NAMES), key=lambda name: sign * self.values[name])

    def best_alone(self) -> str:
        """Return which part alone has the better value."""
        sign = 1 if self.higher_is_better else -1
        return max((COUNTS, NETWORK), key=lambda name: sign * self.values[name])

    def gain(self, part: str) -> float:
        """Return how much better both are than a part alone."""
        difference = self.values[BOTH] - self.values[part]
        return difference if self.higher_is_better else -difference

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return dataclasses.asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return what `to_dict` turned into these `values`.

        Raises:
            UserError: They are damaged.
        """
        try:
            found = {
                part: {name: (float(low), float(high)) for name, (low, high) in values[part].items()}
                for part in ("intervals", "gains")
            }
            return cls(
                str(values["score"]),
                bool(values["higher_is_better"]),
                {name: float(values["values"][name]) for name in NAMES},
                {name: found["intervals"][name] for name in NAMES},
                {name: found["gains"][name] for name in (COUNTS, NETWORK)},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(
                f"expected scores of a model's parts ({', '.join(NAMES)}), got damaged ones ({error}); score the model "
                "again."
            ) from error


def compare_parts(
    score: str,
    higher_is_better: bool,
    examples: Mapping[str, "np.ndarray"],
    measure: Callable[["np.ndarray"], "np.ndarray"],
) -> Parts:
    """Compare the parts of a model by a bootstrap over examples, the same draws for all parts; without randomness.

    Args:
        score: Name of the score.
        higher_is_better: Whether larger values are better.
        examples: `(n, k)` for each of `NAMES`: k numbers of each example, whose sums over examples give the score, such
            as correct and all words. Examples should be independent: documents, or long excerpts of one.
        measure: Turns sums `(..., k)` into scores `(...)`.
    """
    import numpy as np

    stacked = np.stack([np.asarray(examples[name], dtype=np.float64) for name in NAMES])
    parts, count, size = stacked.shape
    values = measure(stacked.sum(1))
    table = stacked.transpose(1, 0, 2).reshape(count, parts * size)
    random = np.random.default_rng(0)
    drawn = [
        measure((random.multinomial(count, np.full(count, 1 / count), _AT_ONCE) @ table).reshape(-1, parts, size))
        for _ in range(_DRAWS // _AT_ONCE)
    ]
    draws = np.concatenate(drawn)
    sign = 1 if higher_is_better else -1

    def interval(numbers: "np.ndarray") -> Interval:
        low, high = np.nanpercentile(numbers, (2.5, 97.5))
        return float(low), float(high)

    return Parts(
        score,
        higher_is_better,
        {name: float(value) for name, value in zip(NAMES, values, strict=True)},
        {name: interval(draws[:, number]) for number, name in enumerate(NAMES)},
        {name: interval(sign * (draws[:, 2] - draws[:, number])) for number, name in enumerate((COUNTS, NETWORK))},
    )


def told(parts: Parts, word: str, number: Callable[[float], str]) -> str:
    """Say in one sentence which part is best, whether the difference is significant, and which part did the work.

    Args:
        parts: The scores.
        word: What tables call the score.
        number: How numbers are written.
    """
    best = parts.best()
    names = {COUNTS: "counts alone", NETWORK: "the network alone", BOTH: "counts and network together"}
    # Where one part adds nothing, its scale is 0 and both are equal to the other.
    equal = [name for name in (COUNTS, NETWORK) if parts.values[name] == parts.values[BOTH]]
    better = parts.best_alone()
    if equal and best == BOTH:
        other = NETWORK if equal[0] == COUNTS else COUNTS
        return (
            f"Counts and network together have the same {word} as {names[equal[0]]} ({number(parts.values[BOTH])}): "
            f"{_short(other)} adds nothing, and the differences between mixers do not show."
        )
    low, high = parts.gains[better]
    significant = low > 0 or high < 0
    verdict = "significant" if significant else "not significant"
    gain = f"{_signed(parts.gain(better), number)}, 95 % interval {_signed(low, number)} to {_signed(high, number)}"
    worker = "most of the work is done by " + _short(better)
    if best == BOTH:
        return f"{names[BOTH].capitalize()} are best: their gain over {names[better]} is {verdict} ({gain}); {worker}."
    return (
        f"{names[best].capitalize()} {'are' if best == COUNTS else 'is'} best: the difference to both together is "
        f"{verdict} ({gain}); {worker}."
    )


def _short(part: str) -> str:
    return "the counts" if part == COUNTS else "the network"


def _signed(value: float, number: Callable[[float], str]) -> str:
    return f"{'-' if value < 0 else ''}{number(abs(value))}"
