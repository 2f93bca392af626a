"""Recipes with a time budget: `check`, `planned` and `recorded`.

A run with a budget becomes a run of so many steps as soon as they are known: its recipe.toml has `training.max_steps`
in place of `training.max_minutes`, so that it can be repeated as it is, and its plan.json says why so many.
"""

import dataclasses
import sys
from copy import deepcopy
from pathlib import Path

from transformers import PreTrainedModel, TrainingArguments

from longspan.errors import UserError
from longspan.tasks.base import Prepared
from longspan.tasks.recipe import Recipe
from longspan.training import budget, processes
from longspan.training.base import LongspanTrainer


def check(recipe: Recipe) -> None:
    """Raise UserError if a recipe has a time budget and a number of steps."""
    minutes, steps = recipe.options.max_minutes, recipe.training.get("max_steps", -1)
    if minutes and steps > 0:
        raise UserError(
            f"expected training.max_minutes or training.max_steps, got both ({minutes:g} and {steps}); set one of them "
            "to 0."
        )


def planned(
    recipe: Recipe, model: PreTrainedModel, arguments: TrainingArguments, prepared: Prepared
) -> tuple[Recipe, budget.Plan | None]:
    """Return the recipe with the number of steps that its time budget allows, and the plan, if it has a budget.

    The first process says on standard error how many they are. The model is left as it is.

    Raises:
        UserError: Nothing useful fits into the budget.
    """
    minutes = recipe.options.max_minutes
    if not minutes:
        return recipe, None

    def make_trainer(given: TrainingArguments) -> LongspanTrainer:
        trainer = recipe.task.make_trainer(recipe, deepcopy(model), given, prepared)
        trainer.at_least(recipe.options.min_steps)
        return trainer

    found = processes.in_each(lambda: budget.plan(minutes, arguments, make_trainer))
    if processes.rank() == 0:
        print(f"longspan: {found.announcement()}", file=sys.stderr)
    return _with(recipe, found), found


def recorded(recipe: Recipe, run_dir: Path) -> Recipe:
    """Return the recipe as a run folder holds it: with the steps that were planned for its time budget, if any were.

    With a larger budget than before, steps are to be planned again.

    Raises:
        UserError: They were planned for a larger budget.
    """
    minutes = recipe.options.max_minutes
    found = budget.read(run_dir) if minutes else None
    if found is None or found.max_minutes < minutes:
        return recipe
    if found.max_minutes > minutes:
        raise UserError(
            f"expected training.max_minutes to be at least {found.max_minutes:g}, for which the {found.steps:,} steps "
            f"of {run_dir} were planned, got {minutes:g}; resume with the same or more."
        )
    return _with(recipe, found)


def _with(recipe: Recipe, plan: budget.Plan) -> Recipe:
    return dataclasses.replace(
        recipe,
        training={**recipe.training, "max_steps": plan.steps},
        options=dataclasses.replace(recipe.options, max_minutes=0.0),
    )
