"""Settings of the parts of a model around its backbone: `EmbeddingSettings` and `HeadSettings`.

A part declares its settings as a strict dataclass next to its code,

    @strict
    @dataclass
    class SensorSettings(EmbeddingSettings):
        '''... Args: ...'''

        channels: int = from_data(1)

and a `LongspanConfig` holds one of each. In config.json and as dictionaries they have a "kind": the name of the file in
`longspan.models.embeddings` or `longspan.models.heads`, each with one such class. The kind may also be the dotted path
of a class elsewhere, which is imported only with consent (`longspan.machine.imports`).
"""

import dataclasses
import functools
import importlib
import math
import typing
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from longspan.errors import UserError, suggestion
from longspan.errors.hints import expectation, matches
from longspan.machine.imports import load_class, modules_in

if TYPE_CHECKING:
    from longspan.models.embeddings.base import Embeddings

P = TypeVar("P", bound="PartSettings")
_LARGEST = 2**31 - 1
#: Ten times as deep as the deepest models; more layers take minutes to build, even without weights.
DEEPEST = 10_000


def from_data(default: Any) -> Any:
    """Return a field of settings that the data decide, or what is read: recipes may not set it."""
    return dataclasses.field(default=default, metadata={"from_data": True})


class PartSettings:
    """What the two kinds of settings have in common."""

    #: Where the part's settings are in a `LongspanConfig`.
    part: ClassVar[str]

    @classmethod
    def kind(cls) -> str:
        """Return what config.json calls them."""
        package, _, name = cls.__module__.rpartition(".")
        return name if package == _package(cls.part) else f"{cls.__module__}.{cls.__qualname__}"

    @classmethod
    def fields(cls, *, from_data: bool) -> dict[str, Any]:
        """Return the names and types of the settings that the data decide, or of those that recipes may set."""
        hints = _hints(cls)  # type: ignore[arg-type]
        declared = dataclasses.fields(cls)  # type: ignore[arg-type]
        return {one.name: hints[one.name] for one in declared if one.metadata.get("from_data", False) == from_data}

    @classmethod
    def settings(cls) -> dict[str, Any]:
        """Return the names and types of all settings."""
        return cls.fields(from_data=False) | cls.fields(from_data=True)

    @classmethod
    def required(cls) -> list[str]:
        """Return the settings without a default."""
        return [one.name for one in dataclasses.fields(cls) if one.default is dataclasses.MISSING]  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON, all of them, so that a later change of defaults does not change a saved model."""
        return {"kind": self.kind(), **dataclasses.asdict(self)}  # type: ignore[call-overload]

    def settle(self, config: Any) -> None:
        """Fill in what a `LongspanConfig` leaves open and this part decides, before its other defaults are."""

    def check(self, config: Any) -> None:
        """Fill in what follows from the model around this part, and raise UserError for what does not fit."""


@functools.cache
def _hints(kind: type[PartSettings]) -> dict[str, Any]:
    # Reading a recipe and building a model ask for them hundreds of times.
    return typing.get_type_hints(kind)


class EmbeddingSettings(PartSettings, ABC):
    """Settings of one kind of embeddings."""

    part = "embeddings"
    #: What stands for settings that are found in files, in a model without weights that is built before these are read.
    stand_in: ClassVar[Mapping[str, Any]] = {}

    @property
    def pretrained(self) -> str | None:
        """The name of the pretrained model that reads the stream, if one does."""
        return None

    @abstractmethod
    def build(self, config: Any) -> "Embeddings":
        """Return the embeddings of a model with this `LongspanConfig`."""


class HeadSettings(PartSettings):
    """Settings of one kind of head."""

    part = "head"
    #: Whether its model is an encoder with a decoder, which transformers reads as `config.is_encoder_decoder`.
    encoder_decoder: ClassVar[bool] = False
    #: Settings that say what layers it has: a model that starts from another one with such a head has the same.
    shape: ClassVar[tuple[str, ...]] = ()


_PACKAGES = {"embeddings": "longspan.models.embeddings", "head": "longspan.models.heads"}
_BASES: dict[str, type[PartSettings]] = {"embeddings": EmbeddingSettings, "head": HeadSettings}


def _package(part: str) -> str:
    return _PACKAGES[part]


def kinds(part: str) -> list[str]:
    """Return the kinds of "embeddings" or of "head" that come with longspan, sorted."""
    package = importlib.import_module(_package(part))
    return [name for name in modules_in(*package.__path__) if name != "base"]


def load(part: str, kind: str) -> type[PartSettings]:
    """Return the settings of a kind of "embeddings" or of "head".

    Raises:
        UserError: Unknown, or a dotted path may not be imported or leads to something else.
    """
    if "." in str(kind):
        return load_class(kind, _BASES[part], what=f"kind of {part}")
    if kind not in kinds(part):
        raise UserError(f"there is no kind of {part} called {kind!r}; {suggestion(str(kind), kinds(part))}")
    module = importlib.import_module(f"{_package(part)}.{kind}")
    own = (value for value in vars(module).values() if getattr(value, "__module__", None) == module.__name__)
    return next(value for value in own if isinstance(value, type) and issubclass(value, _BASES[part]))


def arguments(
    given: Mapping[str, Any], embeddings: Sequence[type[EmbeddingSettings]], head: type[HeadSettings] | None
) -> dict[str, Any]:
    """Return the arguments of a `LongspanConfig` from settings of all parts side by side, as recipes have them.

    Args:
        given: The settings, by name.
        embeddings: The kinds there may be: it is the one whose required settings are given, else the first.
        head: The kind of head, if there is one.

    Raises:
        UserError: A value does not fit its setting.
    """
    rest = dict(given)
    chosen = chosen_kind(rest, embeddings)
    for kind in embeddings:
        if kind is not chosen:
            _refuse_others(rest, chosen, kind)
    for part in (chosen, head):
        if part is not None and rest.get(part.part) is None:
            own = {name: rest.pop(name) for name in part.settings() if name in rest}
            rest[part.part] = made(part, own)
    return rest


def _refuse_others(rest: dict[str, Any], chosen: type[PartSettings], other: type[PartSettings]) -> None:
    """Raise UserError for settings of another kind than the chosen one.

    A kind counts only if its required settings have values.
    """
    needed = [name for name in other.required() if not rest.get(name)]
    for name in needed:
        rest.pop(name, None)
    shared = chosen.settings()
    for name in (name for name in other.settings() if name in rest and name not in shared):
        if needed:
            raise UserError(
                f"{name} needs model.{needed[0]}, got {name}={rest[name]!r} without it; set that one or leave this out."
            )
        its = chosen.required()
        raise UserError(
            f"expected model.{name} only without {' and '.join(its)}, got {name}={rest[name]!r} with "
            f"{' and '.join(f'{one}={rest[one]!r}' for one in its)}; leave one of them out."
        )


def chosen_kind(given: Mapping[str, Any], kinds: Sequence[type[EmbeddingSettings]]) -> type[EmbeddingSettings]:
    """Return the kind of embeddings that settings are for: the one whose required settings they have, or the first."""
    asked = (kind for kind in kinds if kind.required() and all(given.get(name) for name in kind.required()))
    return next(asked, kinds[0])


def parsed(part: str, given: Any) -> Any:
    """Return settings from what a `LongspanConfig` was given: such an object, or a dictionary with a "kind".

    Raises:
        UserError: It is neither, or it has other keys or values.
    """
    if isinstance(given, _BASES[part]):
        return given
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        raise UserError(
            f"expected {part} as settings or a dictionary with a 'kind', one of {', '.join(kinds(part))} or a dotted "
            f"path, got {given!r}; correct it."
        )
    return made(load(part, given["kind"]), {key: value for key, value in given.items() if key != "kind"})


def made(kind: type[P], values: Mapping[str, Any]) -> P:
    """Return settings with these values. Raises UserError for unknown names and values of other types."""
    hints = kind.settings()
    for name in kind.required():
        if name not in values:
            raise UserError(f"the {kind.part} {kind.kind()!r} need the setting {name!r}, got none; give it.")
    for name, value in values.items():
        if name not in hints:
            other = next((home for home in homes(name) if home[0] == kind.part), None)
            hint = f"it is one of {other[1]!r}." if other else suggestion(name, hints)
            raise UserError(f"the {kind.part} {kind.kind()!r} has no setting {name!r}; {hint}")
        if not matches(value, hints[name]):
            raise UserError(f"{name} must be {expectation(hints[name], value)}, got {value!r}; change it.")
    return kind(**values)


def homes(name: str) -> Iterator[tuple[str, str]]:
    """Yield the parts that come with longspan, each with its kind, that have a setting of this name."""
    for part in _PACKAGES:
        for kind in kinds(part):
            settings = load(part, kind)
            if name in settings.settings():
                yield part, kind


def check_sizes(of: Any, least: Mapping[str, int], most: Mapping[str, int] | None = None) -> None:
    """Raise UserError unless each named setting is at least so large, and no larger than any tensor; None is fine."""
    for name, smallest in least.items():
        value, largest = getattr(of, name), (most or {}).get(name, _LARGEST)
        if value is not None and value < smallest:
            raise UserError(f"{name} must be at least {smallest}, got {value}; choose a larger one.")
        if value is not None and value > largest:
            raise UserError(f"{name} must be at most {largest}, got {value}; choose a smaller one.")


def check_shares(of: Any, *names: str) -> None:
    """Raise UserError unless each named setting is between 0 and 1, or None."""
    for name in names:
        value = getattr(of, name)
        # This also refuses NaN.
        if value is not None and not 0 <= value <= 1:
            raise UserError(f"{name} must be from 0 to 1, got {value}; choose another.")


def check_each(of: Any, name: str, count: int, what: str, most: float = math.inf) -> None:
    """Raise UserError unless a list, if there is one, has `count` numbers from 0 to `most`, one for each of `what`."""
    values = getattr(of, name)
    if values is None:
        return
    if len(values) != count:
        raise UserError(
            f"{name} must have a number for each of {count} {what}, got {len(values)}; give one for each, or None."
        )
    # This also refuses NaN.
    if not all(0 <= value <= most and value < math.inf for value in values):
        limits = "at least 0 and finite" if most > 1 else "from 0 to 1"
        raise UserError(f"{name} must be {limits}, got {values}; choose others.")
