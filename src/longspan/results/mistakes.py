"""Mistakes of a model, the worst first: `Mistakes`."""

import heapq
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from longspan.results.base import LAST, Result

#: Mistakes that are kept, and the characters of each of their texts.
MOST, _CHARACTERS = 20, 300


@dataclass(frozen=True)
class Mistake:
    """An example, or a part of one, that a model gets wrong.

    Attributes:
        where: Its place, such as "reviews.csv, row 17".
        expected: The right answer.
        said: The model's answer; "" where only the loss of the right one is known.
        score: How wrong this is: see `Mistakes.measure`.
        text: The beginning of what was read, of texts.
    """

    where: str
    expected: str
    said: str
    score: float
    text: str = ""


@dataclass(frozen=True)
class Mistakes(Result):
    """Mistakes of a model, the worst first, or the reason why they are not known.

    Attributes:
        measure: Meaning of `Mistake.score`, such as "probability of the answer".
        worst: At most `MOST` of them.
        count: Their number.
        reason: Why there is no list; "" if there is one.
    """

    measure: str
    worst: Sequence[Mistake] = ()
    count: int = 0
    reason: str = field(default="", metadata=LAST)

    @classmethod
    def ranked(
        cls, measure: str, scores: Iterable[float], tell: Callable[[int], Mapping[str, str]], *, lowest: bool = False
    ) -> "Mistakes":
        """Return the mistakes with the highest scores.

        Args:
            measure: Meaning of scores.
            scores: `(n,)` of examples; NaN for those without a mistake.
            tell: Returns the other fields of `Mistake` for a number. It is called for the worst alone.
            lowest: Whether the lowest scores are the worst.
        """
        count = 0

        def scored_mistakes() -> Iterator[tuple[float, int]]:
            # One after the other: there may be a score for each of millions of tokens.
            nonlocal count
            for number, score in enumerate(scores):
                if not math.isnan(score):
                    count += 1
                    yield float(score), number

        chosen = (heapq.nsmallest if lowest else heapq.nlargest)(MOST, scored_mistakes(), key=lambda one: one[0])
        worst = [
            Mistake(score=score, **{name: excerpt(text) for name, text in tell(number).items()})
            for score, number in chosen
        ]
        return cls(measure, worst, count)

    def to_dict(self) -> dict[str, Any]:
        """All of it as JSON, or the reason alone."""
        return {"reason": self.reason} if self.reason else super().to_dict()


UNKNOWN = Mistakes("", reason="No mistakes were collected.")


def excerpt(text: str, most: int = _CHARACTERS) -> str:
    """Return the beginning of a text, on one line."""
    # Of a long document, the beginning alone is looked at.
    line = " ".join(text[: 4 * most].split())
    return line if len(line) <= most and len(text) <= 4 * most else f"{line[: most - 2]} …"
