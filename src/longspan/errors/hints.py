"""Type hints of settings: whether a value fits one, and what it expects in words."""

import difflib
import enum
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from longspan.errors import FEW, nearest


def matches(value: Any, hint: Any) -> bool:
    """Say whether a value, as TOML, JSON or Python have it, fits a type hint."""
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
    words = {float: "a number", int: "an integer", bool: "true or false", str: "a string"}
    return words.get(plain, getattr(plain, "__name__", str(plain)))


_EXAMPLES: dict[Any, str] = {str: '["a", "b"]', int: "[1, 2]", float: "[0.1, 0.2]"}


def _choice(names: list[str], value: Any) -> str:
    known = sorted(set(names))
    if len(known) == 1:
        return repr(known[0])
    if len(known) > FEW:
        some = difflib.get_close_matches(value, known, n=3, cutoff=0) if isinstance(value, str) else names[:3]
        return f"one of {len(known)} names such as {', '.join(some)}"
    near = nearest(value, known) if isinstance(value, str) else None
    return f"one of {', '.join(names)}{f' (did you mean {near!r}?)' if near else ''}"
