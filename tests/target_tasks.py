"""Recipes of small models that write a text for each text, as tests of translation and of summarisation train them."""

from typing import Any

from longspan import recipes

TINY = ["data.vocab_size=320", "model.dim=32", "model.heads=2", "model.feed_forward_dim=64", "model.depth=1"]
QUICK = ["training.warmup_steps=10", "training.min_steps=0", "training.num_train_epochs=1"]


def recipe(task: str, data: Any, *more: str) -> Any:
    """Return a recipe for data, or for none."""
    return recipes.load(task, [*([f"data.path={data}"] if data else []), *TINY, *QUICK, *more])


def evaluated(steps: int) -> list[str]:
    """Return the settings with which a run is evaluated and saved every so many steps."""
    return [f"training.{name}_{what}" for name in ("eval", "save") for what in (f"steps={steps}", "strategy=steps")]
