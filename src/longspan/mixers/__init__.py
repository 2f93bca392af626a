"""Mechanisms that move information between positions, all behind one contract.

A mixer is an `nn.Module` that maps (b, t, dim) to (b, t, dim): `mixer(x, mask=None, segments=None)`, `mask` being
(b, t) bool with True at real tokens. Each lives in the file that bears its name, as the class that bears its name
in CamelCase, and is found there: nothing has to be registered. A mixer outside this package is named by its dotted
path, "package.module.Class". One that takes rows up to some length only has that length as its `max_length`.
"""

import importlib
import inspect
import pkgutil
import re
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Bool
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from longspan.errors import UserError, suggestion
from longspan.imports import load_class
from longspan.ops.cache import spelled_out

State = TypeVar("State")


@dataclass(frozen=True)
class Description:
    """What a mixer's class says of itself: read from its docstring and signatures, stored nowhere else."""

    name: str
    summary: str
    cost: str
    source: str
    docstring: str
    options: dict[str, Any]
    causal: bool
    streaming: bool
    cross: bool
    packing: bool


def names() -> list[str]:
    """Return the names of the built-in mixers, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def load(name: str) -> type[nn.Module]:
    """Return the class of the mixer called `name`, or at the dotted path `name`.

    Raises UserError when there is none, or when importing it was not allowed: see `longspan.imports`.
    """
    if "." in name:
        return load_class(name, nn.Module, what="mixer")
    if name not in names():
        raise UserError(f"there is no mixer {name!r}; {suggestion(name, names())}")
    module = importlib.import_module(f"{__name__}.{name}")
    loaded: type[nn.Module] = getattr(module, name.title().replace("_", ""))
    return loaded


def options(name: str) -> dict[str, Any]:
    """Return the options of a mixer and their defaults: the keyword-only arguments of its constructor."""
    parameters = inspect.signature(load(name)).parameters.values()
    return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}


def build(name: str, dim: int, **chosen: Any) -> nn.Module:
    """Return the mixer called `name` for inputs of width `dim`.

    Raises UserError for an unknown mixer, an unknown option, or a value that the mixer refuses.
    """
    known = options(name)
    for option in chosen:
        if option not in known:
            raise UserError(f"mixer {name!r} has no option {option!r}; {suggestion(option, known)}")
    return load(name)(dim, **chosen)


def check_causal(mixer: nn.Module) -> None:
    """Raise UserError unless `mixer` was built causal, as `step` needs."""
    if not mixer.causal:
        raise UserError("step needs a causal mixer, got causal=False; build it with causal=True.")


def reset(mixer: Any, state: State, rows: Bool[Tensor, " b"]) -> State:
    """Return `state` as `mixer.init_state` gives it where `rows` is True: another document begins there.

    A cache keeps its length; what it holds in these rows turns zero, and is seen no more. A state with a field
    `visible` is taken for a cache whose positions are the last but one dimension of its first field.
    """

    def renewed(old: Tensor, new: Tensor) -> Tensor:
        chosen = rows.view(-1, *[1] * (old.ndim - 1))
        return torch.where(chosen, new.to(old), old) if new.shape == old.shape else old.masked_fill(chosen, 0)

    fresh = mixer.init_state(len(rows))
    result: State = tree_map(renewed, _spelled_out(state), _spelled_out(fresh))
    return result


def _spelled_out(state: Any) -> Any:
    if not hasattr(state, "visible"):
        return state
    return state._replace(visible=spelled_out(state.visible, state[0].shape[-2]))


def describe(name: str) -> Description:
    """Return what `longspan list` and `longspan show` print about a mixer."""
    kind = load(name)
    docstring = inspect.getdoc(kind) or ""
    known = options(name)
    forward = inspect.signature(kind.forward).parameters
    return Description(
        name=name,
        summary=docstring.partition("\n")[0],
        cost=_field(docstring, "Cost"),
        source=_field(docstring, "Source"),
        docstring=docstring,
        options=known,
        causal="causal" in known,
        streaming=hasattr(kind, "init_state"),
        cross="context" in forward,
        packing="segments" in forward,
    )


def _field(docstring: str, label: str) -> str:
    found = re.search(rf"^{label}: (.*)$", docstring, re.MULTILINE)
    return found[1] if found else ""
