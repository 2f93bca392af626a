"""Settings of `[model]` that a benchmark's command line gives to all of its models."""

from collections.abc import Sequence
from typing import Any

from longspan import recipes
from longspan.models.backbone import known_to


def chosen(overrides: Sequence[str], mixer_names: Sequence[str]) -> dict[str, Any]:
    """Return what KEY=VALUE overrides set for a model of these mixers, checked as keys of a recipe are.

    Forgetting and rotary positions are left out where none of the mixers knows them.
    """
    # With a mixer that knows both.
    given = ['model.mixers=["linear"]', *(f"model.{override}" for override in overrides)]
    found = recipes.load("shakespeare", given).model
    return known_to(mixer_names, {key: found[key] for key in (override.partition("=")[0] for override in overrides)})
