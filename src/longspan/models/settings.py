"""Settings of the parts of a model around its backbone: `EmbeddingSettings` and `HeadSettings`.

A part declares its settings as a strict dataclass next to its code,

    @strict
    @dataclass
    class SensorSettings(EmbeddingSettings):
        kernel: int = option(5, "width of the convolution", Range(1))
        channels: int = from_data(1, "numbers at each moment")

and a `LongspanConfig` holds one of each. In config.json and as dictionaries they have a "kind": the name of the file in
`longspan.models.embeddings` or `longspan.models.heads`, each with one such class. The kind may also be the dotted path
of a class elsewhere, which is imported only with consent (`longspan.machine.imports`).
"""

import dataclasses
import importlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from longspan import options
from longspan.errors import UserError, suggestion
from longspan.machine.imports import load_class, modules_in

if TYPE_CHECKING:
    from longspan.models.embeddings.base import Embeddings

P = TypeVar("P", bound="PartSettings")
#: The largest size of a tensor.
LARGEST = 2**31 - 1
#: Ten times as deep as the deepest models; more layers take minutes to build, even without weights.
DEEPEST = 10_000
#: A convolution of more positions is not short.
WIDEST = 128


def from_data(default: Any, text: str = "", allowed: options.Range | Collection[str] | None = None) -> Any:
    """Declare a setting that the data decide, so that recipes may not set it; see `longspan.options.option`."""
    return options.option(default, text, allowed, from_data=True)


class PartSettings(options.Options):
    """Settings of embeddings or of a head."""

    #: Name of the part's settings in a `LongspanConfig`.
    part: ClassVar[str]
    largest = LARGEST

    @classmethod
    def kind(cls) -> str:
        """Name of this kind of part in config.json."""
        package, _, name = cls.__module__.rpartition(".")
        return name if package == _PACKAGES[cls.part] else f"{cls.__module__}.{cls.__qualname__}"

    @classmethod
    def required(cls) -> list[str]:
        """Names of the settings without a default."""
        declared = dataclasses.fields(cls)  # type: ignore[arg-type]
        return [one.name for one in declared if options.default(one) is options.REQUIRED]

    def to_dict(self) -> dict[str, Any]:
        """Return them as JSON, all of them, so that a later change of defaults does not change a saved model."""
        return {"kind": self.kind(), **dataclasses.asdict(self)}  # type: ignore[call-overload]

    def settle(self, config: Any) -> None:
        """Fill in what a `LongspanConfig` leaves open and this part decides, before its other defaults are."""

    def check(self, config: Any) -> None:
        """Fill in what follows from the model around this part, and raise UserError for what does not fit."""


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


def dropout_before(what: str) -> Any:
    """Setting `classifier_dropout` of a head: see `LongspanPreTrainedModel.head_dropout`."""
    return options.option(None, f"dropout before {what}; None means `dropout`", options.Range(0, 1))


_PACKAGES = {"embeddings": "longspan.models.embeddings", "head": "longspan.models.heads"}
_BASES: dict[str, type[PartSettings]] = {"embeddings": EmbeddingSettings, "head": HeadSettings}


def kinds(part: str) -> list[str]:
    """Return the kinds of "embeddings" or of "head" that come with longspan, sorted."""
    package = importlib.import_module(_PACKAGES[part])
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
    module = importlib.import_module(f"{_PACKAGES[part]}.{kind}")
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
            rest[part.part] = build(part, {name: rest.pop(name) for name in options.names(part) if name in rest})
    return rest


def _refuse_others(rest: dict[str, Any], chosen: type[PartSettings], other: type[PartSettings]) -> None:
    """Raise UserError for settings of another kind than the chosen one.

    A kind counts only if its required settings have values.
    """
    needed = [name for name in other.required() if not rest.get(name)]
    for name in needed:
        rest.pop(name, None)
    shared = options.names(chosen)
    for name in (name for name in options.names(other) if name in rest and name not in shared):
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
    return build(load(part, given["kind"]), {key: value for key, value in given.items() if key != "kind"})


def build(kind: type[P], values: Mapping[str, Any]) -> P:
    """Settings with these values.

    Raises:
        UserError: A required setting is missing, a name unknown, or a value of another type.
    """
    what = f"the {kind.part} {kind.kind()!r}"
    for name in kind.required():
        if name not in values:
            raise UserError(f"{what} need the option {name!r}, got none; give it.")
    for name in values:
        if name not in options.names(kind) and (others := [of for part, of in homes(name) if part == kind.part]):
            raise UserError(f"{what} has no option {name!r}; it is one of {others[0]!r}.")
    return options.make(kind, values, what)


def homes(name: str) -> Iterator[tuple[str, str]]:
    """Yield the parts that come with longspan, each with its kind, that have a setting of this name."""
    for part in _PACKAGES:
        for kind in kinds(part):
            settings = load(part, kind)
            if name in options.names(settings):
                yield part, kind


def check_count(of: Any, name: str, count: int, what: str) -> None:
    """Raise UserError unless a list, if there is one, has `count` numbers, one for each of `what`."""
    values = getattr(of, name)
    if values is not None and len(values) != count:
        raise UserError(
            f"{name} must have a number for each of {count} {what}, got {len(values)}; give one for each, or None."
        )
