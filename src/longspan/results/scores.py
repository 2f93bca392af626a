"""Typed scores: what a task measures, how tables name it, and which score selects the best epoch."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self, TypeVar

from longspan.errors import UserError, check_choice
from longspan.errors.hints import matches
from longspan.results.base import Result

if TYPE_CHECKING:
    from torch import Tensor

_KEY = "longspan.score"


@dataclass(frozen=True)
class _Shown:
    words: str
    higher_is_better: bool
    share: bool
    headline: bool
    optional: bool


def score(
    words: str, *, higher_is_better: bool, share: bool = False, headline: bool = False, optional: bool = False
) -> Any:
    """Declare a numeric field of `Scores` that tables show.

    Args:
        words: Its name in tables.
        higher_is_better: Whether higher is better.
        share: Whether it is a share from 0 to 1, which tables may show in percent.
        headline: Whether it is the score that is plotted and selects the best epoch; by default, the first one is.
        optional: Whether it may be None, as the loss of a baseline without probabilities.
    """
    return dataclasses.field(metadata={_KEY: _Shown(words, higher_is_better, share, headline, optional)})


@dataclass(frozen=True)
class Scores(Result):
    """The scores of a model on one split; the base class of each task's scores.

    A subclass is a frozen dataclass too. Fields declared with `score` are numbers that tables show; plain fields are
    details, in JSON types: numbers, strings, lists, and dictionaries with strings as keys.

        @dataclass(frozen=True)
        class Errors(Scores):
            by_speaker: dict[str, float]
            error_rate: float = score("error rate", higher_is_better=False, share=True)
    """

    @classmethod
    def shown(cls) -> dict[str, str]:
        """Return the names in tables by field name: the headline first, then the others in order."""
        return {name: shown.words for name, shown in cls._shown().items()}

    @classmethod
    def headline(cls) -> str:
        """Return the name of the score that is plotted and selects the best epoch."""
        return next(iter(cls._shown()))

    @classmethod
    def higher_is_better(cls, name: str = "") -> bool:
        """Return whether higher is better, for the score `name` or else the headline."""
        return cls._find(name).higher_is_better

    @classmethod
    def is_share(cls, name: str = "") -> bool:
        """Return whether the score `name`, or else the headline, is a share from 0 to 1."""
        return cls._find(name).share

    def numbers(self) -> dict[str, float]:
        """Return the scores that tables show, in the order of `shown`, without optional ones that are None."""
        found = {name: getattr(self, name) for name in self._shown()}
        return {name: float(value) for name, value in found.items() if value is not None}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Return the scores that `to_dict` turned into these `values`.

        Raises:
            UserError: Fields are missing or unknown, or one that tables show is not a number.
        """
        known = [field.name for field in dataclasses.fields(cls)]
        for name in values:
            check_choice(f"field of {cls.__name__} called", name, known)
        missing = [name for name in known if name not in values]
        odd = [
            name
            for name, shown in cls._shown().items()
            if name in values and not matches(values[name], float) and not (shown.optional and values[name] is None)
        ]
        if missing or odd:
            raise UserError(
                f"expected {cls.__name__} with a number for each of {', '.join(cls._shown())}, got "
                + (f"none for {', '.join(missing)}" if missing else f"{values[odd[0]]!r} for {odd[0]}")
                + "; score the model again."
            )
        return cls(**values)

    @classmethod
    def _shown(cls) -> dict[str, _Shown]:
        found = {field.name: field.metadata[_KEY] for field in dataclasses.fields(cls) if _KEY in field.metadata}
        marked = [name for name, shown in found.items() if shown.headline]
        if not found or len(marked) > 1:
            raise TypeError(
                f"{cls.__name__} must have fields declared with `score`, at most one of them a headline, got "
                f"{', '.join(found) or 'none'} and the headlines {', '.join(marked) or '(none)'}."
            )
        return {name: found[name] for name in [*marked, *(name for name in found if name not in marked)]}

    @classmethod
    def _find(cls, name: str) -> _Shown:
        shown = cls._shown()
        name = name or next(iter(shown))
        check_choice(f"score of {cls.__name__} called", name, shown)
        return shown[name]


def check_finite(values: "Tensor", what: str) -> None:
    """Raise UserError unless all values of each row are finite; `what` is what rows are called."""
    broken = int((~values.flatten(1).isfinite().all(-1)).sum())
    if broken:
        raise UserError(
            f"expected finite outputs of the model, got some that are not finite for {broken:,} of {len(values):,} "
            f"{what}, as after a training run that diverged; lower training.learning_rate."
        )


S = TypeVar("S", bound=Scores)
