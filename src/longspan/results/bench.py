"""Result of `longspan.bench`: `Benchmark`."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from longspan.results import html
from longspan.results.base import Result, tabled


@dataclass(frozen=True)
class Measurement(Result):
    """One mixer at one length.

    Attributes:
        mixer: Its name; "a+b" is a hybrid.
        length: Positions of a row.
        tokens: Positions of the batch.
        seconds: Median time of a call; None where it was left out.
        low, high: Quartiles of the times, or least and most of at most four.
        repeats: Number of times.
        peak_memory_bytes: Most bytes held at once in addition to inputs and weights, see `peak_of`.
        operations: Multiplications and additions of the matrix products, three times as many with backward passes.
        moved_bytes: Bytes that no implementation can avoid: input, output and weights, with backward also gradients.
        floor_seconds: Seconds that this machine needs for the operations or for the bytes, whichever takes longer.
        finite: Whether all outputs, and with backward all gradients, were finite.
        left_out: Why it was not measured, or None.
    """

    mixer: str
    length: int
    tokens: int
    seconds: float | None = None
    low: float | None = None
    high: float | None = None
    repeats: int = 0
    peak_memory_bytes: int | None = None
    operations: int = 0
    moved_bytes: int = 0
    floor_seconds: float = 0.0
    finite: bool = True
    left_out: str | None = None

    @property
    def tokens_per_second(self) -> float | None:
        """Positions per second."""
        return None if self.seconds is None else self.tokens / self.seconds

    @property
    def distance(self) -> float | None:
        """Time as a multiple of the floor."""
        return None if self.seconds is None or not self.floor_seconds else self.seconds / self.floor_seconds

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON, with rates where there is a time."""
        rates = {}
        if self.seconds is not None:
            rates = {
                "tokens_per_second": self.tokens_per_second,
                "gflops_per_second": self.operations / self.seconds / 1e9,
                "gigabytes_per_second": self.moved_bytes / self.seconds / 1e9,
                "distance_to_floor": self.distance,
            }
        return super().to_dict() | rates


@dataclass(frozen=True)
class Crossing:
    """From which length on a mixer is faster than another.

    Attributes:
        kind: "always" (at all lengths measured for both), "from" (from `length` on), "never" (not up to `length`), or
            "unknown" (no length was measured for both).
        length: Positions, interpolated between two measured lengths where the kind is "from".
    """

    kind: str
    length: float | None = None


@dataclass(frozen=True)
class Benchmark(Result):
    """Result of `longspan.bench`, in `bench.json`.

    Attributes:
        settings: Arguments of the call.
        product_rate: Multiplications and additions per second of matrix products on this machine.
        copy_rate: Bytes per second that a copy reads and writes.
        environment: Software and hardware.
        measurements: A row for each mixer and length.
    """

    settings: Mapping[str, Any]
    product_rate: float
    copy_rate: float
    environment: Mapping[str, Any]
    measurements: Sequence[Measurement] = field(metadata=tabled("mixer", "length", "seconds", "tokens_per_second"))

    @property
    def mixers(self) -> list[str]:
        """The names of the mixers, in order."""
        return list(dict.fromkeys(one.mixer for one in self.measurements))

    @property
    def lengths(self) -> list[int]:
        """The lengths, in order."""
        return sorted({one.length for one in self.measurements})

    def of(self, mixer: str) -> list[Measurement]:
        """Return the rows of a mixer that were measured, by length."""
        found = (one for one in self.measurements if one.mixer == mixer and one.seconds is not None)
        return sorted(found, key=lambda one: one.length)

    def crossing(self, mixer: str, rival: str = "softmax") -> Crossing:
        """Return the length from which a mixer is faster than its rival, interpolated on logarithmic scales."""
        theirs = {one.length: one.seconds for one in self.of(rival)}
        # Logarithms of the ratio of times, below 0 where the mixer is faster.
        ratios = [
            (one.length, math.log(one.seconds / other))
            for one in self.of(mixer)
            if one.seconds and (other := theirs.get(one.length))
        ]
        if not ratios:
            return Crossing("unknown")
        slower = [place for place, (_, ratio) in enumerate(ratios) if ratio >= 0]
        if not slower:
            return Crossing("always", ratios[0][0])
        if slower[-1] == len(ratios) - 1:
            return Crossing("never", ratios[-1][0])
        (first, before), (second, after) = ratios[slower[-1] : slower[-1] + 2]
        share = before / (before - after)
        return Crossing("from", math.exp(math.log(first) + share * math.log(second / first)))

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON, with the crossings of softmax where it is among the mixers."""
        others = [name for name in self.mixers if name != "softmax"] if "softmax" in self.mixers else []
        return super().to_dict() | {"faster_than_softmax": {name: asdict(self.crossing(name)) for name in others}}

    def html(self) -> str:
        """Tables and figures for notebooks."""
        folder = self.settings.get("out")
        return super().html() + (html.figure(Path(folder, "bench.png")) if folder else "")
