"""Values of recipes: reading overrides, and settings given in Python."""

import os
import tomllib
from collections.abc import Mapping
from typing import Any, NamedTuple

from longspan.errors import UserError
from longspan.errors.hints import matches


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
    inner = raw.text.strip().removeprefix("[").removesuffix("]")
    items = [item.strip() for item in inner.split(",") if item.strip()]
    read = [item if (parsed := _toml(item)) is None else parsed for item in items]
    # Numbers are a list where a list of texts would be none.
    numbers = matches(read, hint) and not matches(items, hint)
    if matches("", hint) and matches(raw.text, hint) and not numbers:
        return raw.text
    if matches([], hint):
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


def plain(value: Any) -> Any:
    """Return a value from Python as TOML would hold it: a path as text, a tuple as a list, a scalar of NumPy as its."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, Mapping):
        return {str(key): plain(own) for key, own in value.items()}
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    return value.item() if hasattr(value, "item") else value
