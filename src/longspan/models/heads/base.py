"""Shared part of the `forward` of all heads: hand arguments on to the model below."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor
from transformers.utils.generic import can_return_tuple

from longspan.models.model import LongspanModel

_Forward = TypeVar("_Forward", bound=Callable[..., Any])

_ALWAYS = ("position_ids", "output_attentions", "output_hidden_states")


def delegate_args(*names: str) -> Callable[[_Forward], _Forward]:
    """Let a head's `forward(self, ..., **read)` take arguments of `LongspanModel.forward` that it hands on as `read`.

    Args:
        names: Those besides `position_ids`, `output_attentions` and `output_hidden_states`, and streams of the usual
            embeddings; "streams" for streams of any name, which the embeddings check.

    They are in the signature, where `Trainer`, PEFT and `generate` look for what a model takes; all others are
    TypeErrors. As in transformers, `return_dict=False` returns a tuple.
    """
    known = inspect.signature(LongspanModel.forward).parameters
    any_name = "streams" in names

    def decorate(forward: _Forward) -> _Forward:
        signature = inspect.signature(forward)
        own = {name: each for name, each in signature.parameters.items() if each.kind is not each.VAR_KEYWORD}
        handed = [known.get(name, _stream(name)) for name in (*_ALWAYS, *names) if name not in own]
        taken = own | {
            each.name: each if each.kind is each.VAR_KEYWORD else each.replace(kind=each.KEYWORD_ONLY)
            for each in sorted(handed, key=lambda each: each.kind)
        }

        @functools.wraps(forward)
        def named(self: Any, *arguments: Any, **options: Any) -> Any:
            unknown = () if any_name else tuple(name for name in options if name not in taken)
            if unknown:
                raise TypeError(f"{type(self).__name__}.forward() got an unexpected keyword argument {unknown[0]!r}")
            return forward(self, *arguments, **options, return_dict=True)

        named.__signature__ = signature.replace(parameters=list(taken.values()))  # type: ignore[attr-defined]
        return can_return_tuple(named)

    return decorate


def _stream(name: str) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Tensor | None)
