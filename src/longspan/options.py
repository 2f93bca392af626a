"""Options as fields of dataclasses, each with its default, help, and the values that it may have.

    @dataclass(frozen=True)
    class StarsData(DataConfig):
        stars_column: str = option("stars", "column with the stars")
        most: int = option(5, "largest number of stars", Range(1))

Recipe keys, flags, help, reference pages, checks and messages are made from these. Nothing heavy is imported here, so
that `--help` answers at once.
"""

import argparse
import dataclasses
import functools
import inspect
import math
import re
import reprlib
import textwrap
import tomllib
import types
import typing
from collections.abc import Collection, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar

from longspan.errors import UserError, check_choice, suggestion
from longspan.errors.hints import expectation, matches

T = TypeVar("T")
REQUIRED: Any = dataclasses.MISSING
"""Default of an option without one."""


class Range(NamedTuple):
    """Range of a number, or of each number of a list; None for no limit."""

    least: float | None = None
    most: float | None = None
    above: float | None = None
    below: float | None = None

    def contains(self, value: float) -> bool:
        """Whether a value is in the range; NaN never is."""
        return (
            (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def __str__(self) -> str:
        if self.least is not None and self.most is not None:
            return f"from {self.least} to {self.most}"
        words = {"least": "at least", "above": "above", "most": "at most", "below": "below"}
        limits = [f"{words[name]} {limit}" for name in words if (limit := getattr(self, name)) is not None]
        return " and ".join(limits).replace("above -inf and ", "").replace("below inf", "finite")


FINITE = Range(above=-math.inf, below=math.inf)


def option(
    default: Any,
    text: str = "",
    allowed: Range | Collection[str] | None = None,
    *,
    advice: str = "choose another",
    from_data: bool = False,
) -> Any:
    """Declare a field of a dataclass of options.

    Args:
        default: Value where nothing is given, or `REQUIRED`.
        text: Help, without the default.
        allowed: Range of a number, or the choices of a string whose type is no `Literal`.
        advice: End of the message about a value out of range.
        from_data: Whether the data decide the value, so that recipes cannot set it.
    """
    metadata = {"help": text, "allowed": allowed, "advice": advice, "from_data": from_data}
    if isinstance(default, list):
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


def same_as(kind: type, name: str) -> Any:
    """Declare a required field with the help and the allowed values of an option of another dataclass."""
    declared = _declared(kind)[name]
    return option(REQUIRED, declared.get("help", ""), declared.get("allowed") or _choices(hints(kind)[name]))


class Options:
    """Options that are checked when an object is made, with their help in the docstring of the class.

    Raises:
        UserError: For values out of range.
    """

    #: Table of recipes that holds them, which messages name.
    table: ClassVar[str] = ""
    #: Limit of all numbers with a range.
    largest: ClassVar[float] = math.inf

    def __init_subclass__(cls, **arguments: Any) -> None:
        super().__init_subclass__(**arguments)
        document(cls, {name: value for name, value in vars(cls).items() if isinstance(value, dataclasses.Field)})

    def __post_init__(self) -> None:
        check(self, self.table, self.largest)


def document(kind: type, fields: Mapping[str, dataclasses.Field[Any]]) -> None:
    """Add the help of fields to the docstring of a class, for `help` and the reference pages."""
    helps = {name: text for name, field in fields.items() if (text := field.metadata.get("help"))}
    entries = [textwrap.fill(f"    {name}: {text}", 116, subsequent_indent=" " * 8) for name, text in helps.items()]
    if entries:
        kind.__doc__ = "\n".join([inspect.cleandoc(kind.__doc__ or ""), "", "Attributes:", *entries])


# What a dataclass declares


def names(kind: Any, *, from_data: bool | None = None) -> list[str]:
    """Names of the options in a dataclass: all, or those that the data decide, or those that recipes may set."""
    fields = [field for field in dataclasses.fields(kind) if field.init]
    return [field.name for field in fields if from_data in (None, field.metadata.get("from_data", False))]


def default(field: dataclasses.Field[Any]) -> Any:
    """Default of an option, or `REQUIRED`."""
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


@functools.cache
def hints(kind: Any) -> Mapping[str, Any]:
    """Types of the options in a dataclass, by name."""
    every = typing.get_type_hints(kind)
    return {name: every[name] for name in names(kind)}


@functools.cache
def meanings(kind: Any) -> Mapping[str, str]:
    """Help of the options in a dataclass, by name: of its class or the nearest base, field or docstring; else ""."""
    found: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        found |= {name: text for name, field in _fields(base).items() if (text := field.metadata.get("help"))}
        found |= _entries(inspect.cleandoc(base.__doc__ or ""))
    # Help is written for argparse, where a percent sign is doubled.
    return {name: found.get(name, "").replace("%%", "%") for name in names(kind)}


@functools.cache
def _declared(kind: Any) -> Mapping[str, Mapping[str, Any]]:
    """Declarations of each option of a dataclass, by its class or the nearest base: `allowed` and the like."""
    found: dict[str, dict[str, Any]] = {}
    for base in reversed(kind.__mro__):
        for name, field in _fields(base).items():
            found.setdefault(name, {}).update({what: value for what, value in field.metadata.items() if value})
    return found


def _fields(kind: type) -> Mapping[str, dataclasses.Field[Any]]:
    return vars(kind).get("__dataclass_fields__", {})


def _entries(docstring: str) -> dict[str, str]:
    """Entries of a docstring's "Args:" or "Attributes:"."""
    section = re.search(r"^(?:Args|Attributes):\n((?: .*\n?|\n)*)", docstring, re.MULTILINE)
    found: dict[str, str] = {}
    name = ""
    for line in (section[1] if section else "").splitlines():
        if start := re.match(r"    (\w+): (.*)", line):
            name = start[1]
            found[name] = start[2]
        elif name and line.strip():
            found[name] += f" {line.strip()}"
    return found


# Values


def make(kind: type[T], values: Mapping[str, Any], what: str) -> T:
    """Build an object of options from keyword arguments.

    Args:
        kind: The dataclass.
        values: Values by name.
        what: Owner of the options, for the message.

    Raises:
        UserError: A name is unknown, or a value of the wrong type or out of range.
    """
    known = hints(kind)  # type: ignore[arg-type]
    for name, value in values.items():
        if name not in known:
            hint = suggestion(name, known) if known else "it has none."
            raise UserError(f"{what} has no option {name!r}; {hint}")
        check_type(name, value, known[name])
    return kind(**values)


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raise UserError unless a value has the type of an option."""
    if isinstance(value, str) and (choices := _choices(hint)):
        check_choice(name, value, choices)
    if not matches(value, hint):
        raise UserError(f"{name} expected {expectation(hint, value)}, got {reprlib.repr(value)}; correct it.")


def check_number(name: str, value: Any, hint: Any, allowed: Range) -> None:
    """Raise UserError unless a value is a number of a type, int or float, and in a range."""
    check_type(name, value, hint)
    if not allowed.contains(value):
        raise UserError(f"{name} must be {allowed}, got {value}; choose another.")


def check(options: Any, table: str = "", largest: float = math.inf) -> None:
    """Raise UserError unless the values of options are among those allowed, or None.

    Args:
        options: Object of a dataclass.
        table: Table of recipes that holds them, which messages name.
        largest: Limit of all numbers with a range.
    """
    for field in dataclasses.fields(options):
        value, declared = getattr(options, field.name), _declared(type(options))[field.name]  # type: ignore[arg-type]
        name = f"{table}.{field.name}" if table else field.name
        allowed = declared.get("allowed") or _choices(field.type)
        if isinstance(allowed, Range) and value is not None:
            for limits in (allowed, Range(most=largest)):
                if not all(map(limits.contains, value if isinstance(value, list) else [value])):
                    raise UserError(f"{name} must be {limits}, got {value}; {declared['advice']}.")
        elif allowed and isinstance(value, str):
            check_choice(name, value, allowed)


def coerce(text: str, hint: Any) -> Any:
    """Read a value from text: as TOML first, then as what its type allows that TOML does not.

    An option that holds a string takes the text as it is (`data.path=/x`, `data.text_column=1`), a number may lack its
    leading digit (`.1`), and a list may lack quotes and brackets. Types are checked afterwards by `check_type`.
    """
    value = _toml(text)
    if value is not None and matches(value, hint):
        return value
    inner = text.strip().removeprefix("[").removesuffix("]")
    items = [item.strip() for item in inner.split(",") if item.strip()]
    read = [item if (parsed := _toml(item)) is None else parsed for item in items]
    # Numbers are a list where a list of texts would be none.
    numbers = matches(read, hint) and not matches(items, hint)
    if matches("", hint) and matches(text, hint) and not numbers:
        return text
    if matches([], hint):
        # A bare 2024 is the name of a column where names are wanted.
        return items if value is None and matches(items, hint) and not matches(read, hint) else read
    if matches(0.5, hint):
        try:
            return float(text)
        except ValueError:
            pass
    return text if value is None else value


def _toml(text: str) -> Any:
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return None
    # A line break inside the text could have started a second key.
    return document["value"] if len(document) == 1 else None


# Flags


def add_flags(parser: Any, kind: type, only: Collection[str] | None = None) -> None:
    """Add one flag for each option to an argparse parser or group. Flags not given are absent from the result.

    Args:
        parser: The parser or group.
        kind: The options.
        only: The names of those that get a flag; None for all.
    """
    for field in dataclasses.fields(kind):
        if only is not None and field.name not in only:
            continue
        hint = _without_none(hints(kind)[field.name])
        choices, default = _choices(hint), field.default
        text = meanings(kind)[field.name].replace("%", "%%")
        more = "" if default in (None, "", False) else f" (default: {default})"
        settings: dict[str, Any] = {"default": argparse.SUPPRESS, "help": f"{text}{more}"}
        if hint is bool:
            settings["action"] = "store_true" if default is False else argparse.BooleanOptionalAction
        else:
            # Not argparse's own `choices`: `make` says in one sentence which one was meant.
            settings["type"] = str if choices else hint
            settings["metavar"] = f"{{{','.join(choices)}}}" if choices else _METAVARS.get(hint, "X")
        parser.add_argument(f"--{field.name.replace('_', '-')}", **settings)


_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT"}


def _without_none(hint: Any) -> Any:
    """Type of an option without None; of several types, text."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        arms = [arm for arm in typing.get_args(hint) if arm is not types.NoneType]
        return arms[0] if len(arms) == 1 else str
    return hint


def _choices(hint: Any) -> tuple[str, ...]:
    """Values of a `Literal`, with or without None; of any other type, none."""
    plain = _without_none(hint)
    return typing.get_args(plain) if typing.get_origin(plain) is typing.Literal else ()
