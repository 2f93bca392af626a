"""Encoders of items and users in models that recommend, all of one class and one contract.

A recommender is a `Recommender` (`longspan.models.recommenders.base`). Each is found by its name: the file of that name
has a class of that name in CamelCase, and nothing has to be registered. One outside this package is named by its dotted
path, "package.module.Class".
"""

import importlib
import inspect
from typing import Any

from longspan.errors import UserError, suggestion
from longspan.machine.imports import load_class, modules_in
from longspan.models.recommenders.base import News, Recommender

__all__ = ["News", "Recommender", "build", "load", "names", "options", "word_dim"]


def names() -> list[str]:
    """Return the names of the built-in recommenders, sorted."""
    return [name for name in modules_in(*__path__) if name != "base"]


def load(name: str) -> type[Recommender]:
    """Return the class of the recommender called `name`, or at the dotted path `name`.

    Raises UserError for an unknown recommender, and for a dotted path that may not be imported
    (`longspan.machine.imports`) or leads to something that is not a `Recommender`.
    """
    if "." in name:
        return load_class(name, Recommender, what="recommender")
    if name not in names():
        raise UserError(f"there is no recommender {name!r}; {suggestion(name, names())}")
    kind: type[Recommender] = getattr(importlib.import_module(f"{__name__}.{name}"), name.title().replace("_", ""))
    return kind


def options(name: str) -> dict[str, Any]:
    """Return the options of a recommender and their defaults: the keyword-only arguments of its constructor."""
    parameters = inspect.signature(load(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def build(config: Any) -> Recommender:
    """Return the recommender of a `LongspanConfig`.

    Raises UserError for an unknown recommender or option, a value that the recommender refuses, and settings of layers
    that it does not have. So it does if the recommender needs users and the data lack them.
    """
    name, chosen = config.head.recommender, dict(config.head.recommender_options)
    known = options(name)
    for option in chosen:
        if option not in known:
            raise UserError(f"recommender {name!r} has no option {option!r}; {suggestion(option, known)}")
    kind = load(name)
    kind.check(config)
    return kind(config, **chosen)


def word_dim(name: str) -> int | None:
    """Return the width of the word vectors that a recommender was published with; None if it is the model's."""
    # A configuration of any other model loads nothing.
    return None if name == "longspan" else load(name).word_dim
