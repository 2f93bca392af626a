"""Scores of the parts of a model alone and together, with intervals: `Parts`, made by `compare_parts`."""

import dataclasses
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from longspan.errors import UserError
from longspan.results.base import Result

if TYPE_CHECKING:
    import numpy as np

#: The wide part alone, the rest of the model alone, and the whole model.
COUNTS, NETWORK, BOTH = NAMES = ("counts", "network", "both")
#: Draws of a bootstrap, and how many of them are in memory at once.
_DRAWS, _AT_ONCE = 1000, 50

Interval = tuple[float, float]


@dataclass(frozen=True)
class Parts(Result):
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
        """The name of `NAMES` with the best value; of equal ones the last."""
        sign = 1 if self.higher_is_better else -1
        return max(reversed(NAMES), key=lambda name: sign * self.values[name])

    def best_alone(self) -> str:
        """The part that alone has the better value."""
        sign = 1 if self.higher_is_better else -1
        return max((COUNTS, NETWORK), key=lambda name: sign * self.values[name])

    def gain(self, part: str) -> float:
        """Gain of both over a part alone."""
        difference = self.values[BOTH] - self.values[part]
        return difference if self.higher_is_better else -difference

    def equals_both(self, part: str) -> bool:
        """Return whether a part alone does what both do, on each example: the other part adds nothing."""
        # A tie by chance differs in some draws of the bootstrap.
        return self.gain(part) == 0 and self.gains[part] == (0, 0)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """The parts that `to_dict` turned into these `values`.

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


def mean_of(runs: Sequence[Parts]) -> Parts:
    """Return the mean of several runs on the same examples, such as of several seeds.

    Each end of an interval is the mean of those of the runs. Runs share their examples, so that their mean depends on
    these as much as each run does.
    """

    def mean(intervals: Sequence[Interval]) -> Interval:
        low, high = (statistics.fmean(ends) for ends in zip(*intervals, strict=True))
        return low, high

    return dataclasses.replace(
        runs[0],
        values={name: statistics.fmean([run.values[name] for run in runs]) for name in NAMES},
        intervals={name: mean([run.intervals[name] for run in runs]) for name in NAMES},
        gains={name: mean([run.gains[name] for run in runs]) for name in (COUNTS, NETWORK)},
    )


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


def describe_parts(parts: Parts, word: str, number: Callable[[float], str]) -> str:
    """Say which part is best, whether the difference is significant, and which part does the work.

    Args:
        parts: The scores.
        word: Name of the score in tables.
        number: How numbers are written.
    """
    same = [part for part in (COUNTS, NETWORK) if parts.equals_both(part)]
    value = f"{word} {number(parts.values[BOTH])}"
    alone = f"gives the same results ({value})"
    if len(same) == 2:
        return f"The counts and the network give the same results ({value})."
    if same:
        if same[0] == COUNTS:
            return f"The count-based part alone {alone}; the network adds nothing on these data."
        return f"The network alone {alone}; the counts add nothing on these data."
    best, better = parts.best(), parts.best_alone()
    gain, (low, high) = parts.gain(better), parts.gains[better]
    if best == BOTH:
        first, than = "Counts and network together are best", f"{_THE[better]} alone"
    else:
        first, than = f"{_THE[best].capitalize()} alone {_ARE[best]} best", "counts and network together"
        gain, low, high = -gain, -high, -low
    verdict = "significant" if low > 0 or high < 0 else "not significant"
    return (
        f"{first} ({word} {number(parts.values[best])}): better than {than} by {_signed(gain, number)} "
        f"(95 % interval {_signed(low, number)} to {_signed(high, number)}, {verdict}). {_work(parts, better)}"
    )


def told_of_mixers(mixers: Mapping[str, Parts], word: str, number: Callable[[float], str]) -> str:
    """Say which mixer is best, whether that may be chance, which part does the work, and which network is best alone.

    Args:
        mixers: The scores of each mixer, on the same examples.
        word: Name of the score in tables.
        number: How numbers are written.
    """
    if len(mixers) == 1:
        return describe_parts(next(iter(mixers.values())), word, number)
    best = _best(mixers, BOTH, number)
    parts = mixers[best[0]]
    value = number(parts.values[BOTH])
    idle = [name for name, found in mixers.items() if found.equals_both(COUNTS)]
    networks = _networks(mixers, word, number)
    if len(best) == len(idle) == len(mixers):
        return (
            f"All mixers have the same {word}, {value}: the counts alone decide, and no network changes a result. "
            f"{networks}"
        )
    sentences = [f"{_listed(best)} {'is' if len(best) == 1 else 'are'} best ({word} {value} with both parts)."]
    close = [name for name, found in mixers.items() if name not in best and _overlap(found, parts)]
    if close:
        sentences.append(f"That may be chance: the intervals of {best[0]} and {_listed(close)} overlap.")
    explained = describe_parts(parts, word, number)
    sentences.append(f"In {best[0]}, {explained[0].lower()}{explained[1:]}")
    if others := [name for name in idle if name != best[0]]:
        sentences.append(f"In {_listed(others)}, the counts alone decide.")
    return " ".join([*sentences, networks])


_THE = {COUNTS: "the counts", NETWORK: "the network"}
_ARE = {COUNTS: "are", NETWORK: "is"}


def _work(parts: Parts, better: str) -> str:
    if parts.values[COUNTS] == parts.values[NETWORK]:
        return "Alone, both parts are equally good."
    return f"{_THE[better].capitalize()} {'do' if better == COUNTS else 'does'} most of the work."


def _networks(mixers: Mapping[str, Parts], word: str, number: Callable[[float], str]) -> str:
    best = _best(mixers, NETWORK, number)
    value = f"{word} {number(mixers[best[0]].values[NETWORK])}"
    if len(best) == len(mixers):
        return f"All networks alone are equally good ({value})."
    return f"The best network alone is that of {' or '.join(best)} ({value})."


def _best(mixers: Mapping[str, Parts], part: str, number: Callable[[float], str]) -> list[str]:
    """Return the mixers whose part is best, as far as tables show."""
    values = {name: parts.values[part] for name, parts in mixers.items()}
    best = (max if next(iter(mixers.values())).higher_is_better else min)(values.values())
    return [name for name, value in values.items() if number(value) == number(best)]


def _overlap(one: Parts, other: Parts) -> bool:
    (low, high), (least, most) = one.intervals[BOTH], other.intervals[BOTH]
    return low <= most and least <= high


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def _signed(value: float, number: Callable[[float], str]) -> str:
    return f"{'-' if value < 0 else ''}{number(abs(value))}"
