"""Templates of pages: `template`."""

import functools
import json
import math
from typing import Any

from jinja2 import BaseLoader, Environment, PackageLoader, StrictUndefined, Template

_LARGEST = 1e300


def template(name: str) -> Template:
    """Return a template of `report/templates`. All that it is given is escaped.

    Its filter `cell` writes what is in a cell of a table, and its test `amount` says whether that is a number.
    """
    return _environment().get_template(name)


def environment(loader: BaseLoader, **options: Any) -> Environment:
    """Return an environment of templates in which whatever is undefined is an error."""
    return Environment(loader=loader, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, **options)


@functools.cache
def _environment() -> Environment:
    made = environment(PackageLoader("longspan.report"), autoescape=True)
    made.filters["cell"] = cell
    made.tests["amount"] = is_number
    return made


def cell(value: Any) -> str:
    """Return a value as it is written in a table."""
    if value is None:
        return ""
    if isinstance(value, bool) or not is_number(value):
        return value if isinstance(value, str) else json.dumps(value)
    # JSON may have numbers that are none, and whole ones as floats.
    if math.isfinite(value) and (value == int(value) or abs(value) >= 1000):
        return f"{value:,.0f}"
    return f"{value:.4g}"


def is_number(value: Any) -> bool:
    """Say whether a value is a number, which True is not."""
    # Files of strangers may have whole numbers that no float can be.
    return isinstance(value, int | float) and not isinstance(value, bool) and not abs(value) > _LARGEST
