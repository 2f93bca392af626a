"""What a time budget promises: a run with a number of steps that its recipe and its plan agree on."""

from pathlib import Path

from longspan import recipes
from longspan.machine import imports
from longspan.testing.tasks.subject import Subject, need
from longspan.verbs import budget
from longspan.verbs.train import train


def trains_within_a_time_budget(subject: Subject) -> None:
    """With `training.max_minutes`, a run is planned, trained, and written with a fixed number of steps."""
    # Both epochs fit, however slow the machine is.
    recipe = subject.recipe(["training.max_minutes=2"])
    result = train(recipe, run=subject.folder / "budget", progress=False, allow_imports=subject.consent)
    plan = budget.read(Path(result.folder))
    need(plan is not None, "a run with a time budget must write plan.json")
    assert plan is not None
    need(plan.steps == result.steps > 0, f"{plan.steps} steps were planned, but {result.steps} were taken")
    with imports.allow(*subject.consent):
        written = recipes.load(str(Path(result.folder, "recipe.toml")))
    need(
        written.training["max_steps"] == plan.steps and not written.options.max_minutes,
        "the recipe of a run with a time budget must have the planned steps in place of the budget",
    )
