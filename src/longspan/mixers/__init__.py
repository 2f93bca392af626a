"""Mechanisms that move information between positions, all of one class and one contract.

A mixer is a `Mixer` (`longspan.mixers.base`), which maps (b, t, dim) to (b, t, dim). Each is found by its name: the
file of that name has a class of that name in CamelCase, and nothing has to be registered. `aliases` are alternative
names. A mixer outside this package is named by its dotted path, "package.module.Class".
"""

import importlib
import inspect
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from longspan.errors import UserError, suggestion
from longspan.machine.imports import load_class, modules_in
from longspan.mixers.aliases import ALIASES, MEANT, Alias
from longspan.mixers.base import Capabilities, ContextState, Look, Mixer

__all__ = [
    "Alias",
    "Capabilities",
    "ContextState",
    "Description",
    "Look",
    "Mixer",
    "aliases",
    "build",
    "describe",
    "load",
    "names",
    "options",
]
# Modules of this package that hold no mechanism.
_OTHERS = ("aliases", "base", "looks")


@dataclass(frozen=True)
class Description:
    """Description of a mixer that `longspan list` and `longspan show` print.

    Attributes:
        name: the name under which it was requested.
        alias_of: the mixer that `name` is another name for, or None.
        aliases: other names of it.
        summary, cost, source, docstring: the class's docstring and parts of it, for people to read.
        options: the options and their defaults.
        causal, streaming, context, weights, packing: see `Capabilities`.
        edges: whether it reads what joins positions, such as the edges of a graph (`Capabilities.structure`).
    """

    name: str
    alias_of: str | None
    aliases: tuple[str, ...]
    summary: str
    cost: str
    source: str
    docstring: str
    options: dict[str, Any]
    causal: bool
    streaming: bool
    context: bool
    weights: bool
    packing: bool
    edges: bool


def names() -> list[str]:
    """Return the names of the built-in mixers, sorted."""
    return [name for name in modules_in(*__path__) if name not in _OTHERS]


def aliases() -> Mapping[str, Alias]:
    """Return the alternative names, each with its mixer and the options that it sets."""
    return ALIASES


def load(name: str) -> type[Mixer]:
    """Return the class of the mixer called `name`, by alias too, or at the dotted path `name`.

    Raises UserError for an unknown mixer, and for a dotted path that may not be imported (`longspan.machine.imports`)
    or leads to something that is not a `Mixer`.
    """
    if "." in name:
        return load_class(name, Mixer, what="mixer")
    name = ALIASES[name].mixer if name in ALIASES else name
    if name not in names():
        hint = suggestion(name, [*names(), *ALIASES], meant=MEANT, see="`longspan list`")
        raise UserError(f"there is no mixer {name!r}; {hint}")
    kind: type[Mixer] = getattr(importlib.import_module(f"{__name__}.{name}"), name.title().replace("_", ""))
    return kind


def options(name: str) -> dict[str, Any]:
    """Return the options of a mixer and their defaults: the keyword-only arguments of its constructor."""
    parameters = inspect.signature(load(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY} | _preset(name)


def build(name: str, dim: int, **chosen: Any) -> Mixer:
    """Return the mixer called `name` for inputs of width `dim`.

    Raises UserError for an unknown mixer, an unknown option, or a value that the mixer refuses.
    """
    known = options(name)
    for option in chosen:
        if option not in known:
            raise UserError(f"mixer {name!r} has no option {option!r}; {suggestion(option, known)}")
    try:
        return load(name)(dim, **_preset(name) | chosen)
    except UserError as error:
        if name not in ALIASES:
            raise
        raise UserError(f"mixer {name!r} is {ALIASES[name].mixer!r} by another name: {error}") from error


def describe(name: str) -> Description:
    """Description of a mixer that `longspan list` and `longspan show` print."""
    kind = load(name)
    docstring = inspect.getdoc(kind) or ""
    able = kind.capabilities
    return Description(
        name=name,
        alias_of=ALIASES[name].mixer if name in ALIASES else None,
        aliases=tuple(alias for alias, (mixer, _) in ALIASES.items() if mixer == name),
        summary=docstring.partition("\n")[0],
        cost=_field(docstring, "Cost"),
        source=_field(docstring, "Source"),
        docstring=docstring,
        options=options(name),
        causal=able.causal,
        streaming=able.streaming,
        context=able.context,
        weights=able.weights,
        packing=able.packing,
        edges=able.structure is not None,
    )


def _preset(name: str) -> dict[str, Any]:
    return dict(ALIASES[name].options) if name in ALIASES else {}


def _field(docstring: str, label: str) -> str:
    found = re.search(rf"^{label}: (.*)$", docstring, re.MULTILINE)
    return found[1] if found else ""
