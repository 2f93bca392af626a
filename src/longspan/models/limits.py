"""The longest document a model takes."""

import itertools
from typing import NamedTuple

from transformers import PreTrainedModel

from longspan.errors import UserError


class Limit(NamedTuple):
    """A part of a model that takes at most this many `tokens`, and the recipe key that sets how many."""

    part: str
    tokens: int
    key: str


def limits(model: PreTrainedModel) -> list[Limit]:
    """Return the parts that limit the length of a document: learned positions, and mixers with a `max_length`."""
    body = model.base_model
    config = body.config
    found = []
    # Numbers that restart early enough never reach the end of the table.
    if config.position == "learned" and not 0 < (config.position_period or 0) <= config.max_positions:
        found.append(Limit("learned positions", config.max_positions, "model.max_positions"))
    for name, block in zip(itertools.cycle(config.mixers), body.backbone.blocks, strict=False):
        most = block.mixer.max_length
        if most is not None:
            found.append(Limit(f"rows of {name}", most, f"model.mixer_options.{name}.max_length"))
    return list(dict.fromkeys(found))


def check_length(model: PreTrainedModel, tokens: int, what: str, advice: str) -> None:
    """Raise UserError, naming every part that is too short, unless `model` takes `tokens` in one go.

    Args:
        model: A longspan model.
        tokens: The number of tokens.
        what: Thing of that length, such as "a document".
        advice: Advice, where "{most}" is replaced by the number it takes and "{longer}" by the recipe keys that
            would let it take `tokens`.
    """
    short = _too_short(model, tokens)
    if short:
        most = min(limit.tokens for limit in short)
        longer = " and ".join(f"{limit.key}={tokens}" for limit in short)
        raise UserError(f"expected {_most(short)}, got {tokens} in {what}; {advice.format(most=most, longer=longer)}.")


def too_long(model: PreTrainedModel, tokens: int) -> str:
    """Return why `model` does not take `tokens` in one go; empty if it does."""
    short = _too_short(model, tokens)
    return f"expected {_most(short)}, got {tokens}" if short else ""


def _too_short(model: PreTrainedModel, tokens: int) -> list[Limit]:
    return [limit for limit in limits(model) if limit.tokens < tokens]


def _most(short: list[Limit]) -> str:
    return " and ".join(f"at most {limit.tokens} tokens for {limit.part}" for limit in short)
