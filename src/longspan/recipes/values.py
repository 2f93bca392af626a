"""Values of recipes: reading overrides, checking types, writing TOML."""

import difflib
import enum
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from longspan.errors import FEW, UserError, nearest


class Raw(NamedTuple):
    """The text on the right of an override's `=`."""

    text: str


def split_override(override: str) -> tuple[list[str], str]:
    """Split `a.b.c=value` into its dotted key and the text of its value.

    Raises:
        UserError: There is no `=`, or an empty key.
    """
    key, equals, value = override.partition("=")
    parts = [part.strip() for part in key.split(".")]
    if not equals or not all(parts):
        raise UserError(f"expected an override such as training.seed=1, got {override!r}; correct it.")
    return parts, value.strip()


def coerce(raw: Raw, hint: Any) -> Any:
    """Read an override's value: TOML first, then what its type allows that TOML does not.

    A key that holds a string takes the text as it is (`data.path=/x`, `data.text_column=1`), a number may lack its
    leading digit (`.1`), and a list may lack quotes and brackets. Types are checked afterwards by `matches`.
    """
    value = _toml(raw.text)
    if value is not None and matches(value, hint):
        return value
    if matches("", hint) and matches(raw.text, hint):
        return raw.text
    if matches([], hint):
        inner = raw.text.strip().removeprefix("[").removesuffix("]")
        items = [item.strip() for item in inner.split(",") if item.strip()]
        read = [item if (parsed := _toml(item)) is None else parsed for item in items]
        # A bare 2024 is the name of a column where names are wanted.
        return items if value is None and matches(items, hint) and not matches(read, hint) else read
    if matches(0.5, hint):
        try:
            return float(raw.text)
        except ValueError:
            pass
    return raw.text if value is None else value


def _toml(text: str) -> Any:
    try:
        document = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        return None
    # A line break inside the text could have started a second key.
    return document["value"] if len(document) == 1 else None


def matches(value: Any, hint: Any) -> bool:
    """Say whether a value read from TOML fits a type hint."""
    origin = typing.get_origin(hint)
    if hint is Any:
        return True
    if origin in (typing.Union, types.UnionType):
        return any(matches(value, arm) for arm in _arms(hint))
    if origin is typing.Literal:
        return any(value == choice and type(value) is type(choice) for choice in typing.get_args(hint))
    plain = origin or hint
    if not isinstance(plain, type):
        return True
    if issubclass(plain, enum.Enum):
        return value in [member.value for member in plain]
    if plain is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if plain is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if issubclass(plain, Mapping):
        return isinstance(value, dict)
    if plain is not str and issubclass(plain, Sequence):
        items = typing.get_args(hint)
        return isinstance(value, list) and (not items or all(matches(item, items[0]) for item in value))
    return isinstance(value, plain)


def _arms(hint: Any) -> list[Any]:
    """Return the alternatives of a union; a plain string next to an enumeration means one of its names."""
    arms = typing.get_args(hint)
    listed = any(isinstance(arm, type) and issubclass(arm, enum.Enum) for arm in arms)
    return [arm for arm in arms if not (listed and arm is str)]


def expectation(hint: Any, value: Any = None) -> str:
    """Say in words what a type hint expects, with the nearest choice to `value` where it is one of several names."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        arms = [arm for arm in _arms(hint) if arm is not types.NoneType and not (arm is int and float in _arms(hint))]
        return " or ".join(dict.fromkeys(expectation(arm, value) for arm in arms))
    if typing.get_origin(hint) is typing.Literal:
        return _choice([str(choice) for choice in typing.get_args(hint)], value)
    plain = typing.get_origin(hint) or hint
    if isinstance(plain, type):
        if issubclass(plain, enum.Enum):
            return _choice([str(member.value) for member in plain], value)
        if issubclass(plain, Mapping):
            return "a table of keys and values"
        if plain is not str and issubclass(plain, Sequence):
            items = typing.get_args(hint)
            return f"a list such as {_EXAMPLES.get(items[0] if items else str, '[...]')}"
    words = {float: "a number", int: "a whole number", bool: "true or false", str: "a string"}
    return words.get(plain, getattr(plain, "__name__", str(plain)))


_EXAMPLES: dict[Any, str] = {str: '["a", "b"]', int: "[1, 2]", float: "[0.1, 0.2]"}


def _choice(names: list[str], value: Any) -> str:
    known = sorted(set(names))
    if len(known) > FEW:
        some = difflib.get_close_matches(value, known, n=3, cutoff=0) if isinstance(value, str) else names[:3]
        return f"one of {len(known)} names such as {', '.join(some)}"
    near = nearest(value, known) if isinstance(value, str) else None
    return f"one of {', '.join(names)}{f' (did you mean {near!r}?)' if near else ''}"
