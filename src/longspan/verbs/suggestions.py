"""What follows from the costs of steps: where a mixer is cheaper than another, and settings that fit into memory."""

import dataclasses
from collections.abc import Callable

from longspan.results.forecast import Suggestion
from longspan.tasks.base import Recipe
from longspan.verbs.step_costs import Load, StepCost

_SHORTEST, _DOUBLINGS = 16, 16
_MOST_TIMES = 6
"""Batches are not made larger than so many doublings of the recipe's."""


def cheaper_from(cost: StepCost, other: StepCost, recipe: Recipe) -> int | None:
    """Return from which length on full batches take less time per position by `cost` than by `other`.

    Lengths are tried in steps of a quarter of a doubling, up to a million. 0 means at all of them, None at none.
    """

    def wins(length: int) -> bool:
        rows = _rows(recipe, length)
        load = Load(rows * length, rows * length**2)
        return cost(load) < other(load)

    lengths = [round(_SHORTEST * 2 ** (step / 4)) for step in range(4 * _DOUBLINGS + 1)]
    found = None
    for length in reversed(lengths):
        if not wins(length):
            return found
        found = length
    return 0


def fitting(
    mixer: str,
    recipe: Recipe,
    key: str,
    length: int | None,
    largest: Load,
    bytes_of: Callable[[Load], float],
    memory: int,
) -> Suggestion:
    """Return the largest batch of a recipe that fits into memory; if not even one row does, the longest row.

    Sizes are powers of two of the recipe's. Where batches are made smaller, gradients are accumulated over more of
    them.

    Args:
        mixer: the mixer.
        recipe: its recipe.
        key: the key that sets the length, "" for none.
        length: its value; 0 or None if there is none.
        largest: what the recipe's largest batch reads.
        bytes_of: the memory that a batch takes.
        memory: the memory that there is.
    """
    row = largest.length
    tokens = getattr(recipe.options, "batch_tokens", 0)
    size = recipe.training["per_device_train_batch_size"]
    limited = bool(tokens) and size * row > tokens
    name, value = ("batch_tokens", tokens) if limited else ("per_device_train_batch_size", size)
    for doublings in range(_MOST_TIMES, -31, -1):
        factor = 2.0**doublings
        if value * factor < 1:
            break
        load = Load(max(row, factor * largest.positions), max(row**2, factor * largest.pairs))
        if bytes_of(load) <= memory:
            words = [f"training.{name}={int(value * factor)}"]
            if factor < 1:
                each = recipe.training.get("gradient_accumulation_steps", 1)
                words.append(f"training.gradient_accumulation_steps={int(each / factor)}")
            return Suggestion(mixer, words, needed=factor < 1)
    power = 2 if key == "data.max_side" else 1
    longest = length or round(row)
    while key and longest > 1:
        longest //= 2
        shorter = row * (longest / (length or row)) ** power
        if bytes_of(Load(shorter, shorter**2)) <= memory:
            return Suggestion(mixer, [f"{key}={longest}", "training.per_device_train_batch_size=1"], needed=True)
    return Suggestion(mixer, [], needed=True)


def smaller(recipe: Recipe) -> Recipe:
    """Return a recipe whose batches are an eighth of another's, of a row at least."""
    rows = max(1, recipe.training["per_device_train_batch_size"] // 8)
    options, tokens = recipe.options, getattr(recipe.options, "batch_tokens", 0)
    if tokens:
        options = dataclasses.replace(options, batch_tokens=max(1, tokens // 8))
    return dataclasses.replace(
        recipe, training={**recipe.training, "per_device_train_batch_size": rows}, options=options
    )


def _rows(recipe: Recipe, length: int) -> int:
    """Return how many rows of a length a batch has."""
    size, tokens = recipe.training["per_device_train_batch_size"], getattr(recipe.options, "batch_tokens", 0)
    return int(min(size, max(1, tokens // length))) if tokens else int(size)
