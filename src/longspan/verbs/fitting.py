"""Fitting one baseline of a comparison, as a program of its own: `python -m longspan.verbs.fitting RECIPE NAME`.

The scores and what they cost go into metrics.json next to the recipe. It is a process of its own so that its peak
memory can be measured as that of training is.
"""

import argparse
import dataclasses
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from longspan import recipes
from longspan.data.sources.files.opening import expand
from longspan.errors import UserError, sentence_of, suggestion
from longspan.machine import imports
from longspan.machine.memory import peak_memory
from longspan.machine.session import quieten_transformers
from longspan.results.outputs import write_json
from longspan.tasks.base.task import Baseline, ModelBaseline, Recipe, RunBaseline, Task
from longspan.verbs.runs import load_run


def find(task: Task, name: str) -> Baseline:
    """Return a task's baseline.

    Args:
        task: The task.
        name: The baseline's name; for a `ModelBaseline`, with its model after a colon.

    Raises:
        UserError: Unknown baseline, its model is not on this machine, or a package that it needs is not installed.
    """
    known = task.baselines()
    plain, colon, model = name.partition(":")
    if plain not in known:
        hint = suggestion(plain, known) if known else "leave --baselines out, as it has none."
        raise UserError(f"the task {task.name!r} has no baseline {plain!r}; {hint}")
    kind = known[plain]
    for package in kind.packages:
        imports.require(package, f"the baseline {plain!r}", instead="leave it out")
    if issubclass(kind, ModelBaseline):
        if not model:
            raise UserError(
                f"the baseline {plain!r} expected the name or the folder of a model after a colon, got none; write, "
                f"for example, {plain}:{kind.example}."
            )
        return kind(model, load_run(expand(model))) if issubclass(kind, RunBaseline) else kind(model)
    if colon:
        raise UserError(f"the baseline {plain!r} expected no model, got {name!r}; write {plain}.")
    return kind()


def folder_name(name: str, baseline: Baseline) -> str:
    """Return the name of a baseline's folder in a comparison; each model has its own."""
    model = f"-{baseline.label()}" if isinstance(baseline, ModelBaseline) else ""
    return f"baseline-{name.partition(':')[0]}{model}"


def recipe_of(recipe: Recipe, *, trains: bool = False) -> Recipe:
    """Recipe for a baseline: data and what is scored of them, not the model and its training.

    A baseline that `trains` also has its number of epochs and its time budget.
    """
    training, options = {**recipes.TRAINING_DEFAULTS, "seed": 0}, recipe.options
    if trains:
        training["num_train_epochs"] = recipe.training["num_train_epochs"]
    else:
        options = dataclasses.replace(options, max_minutes=0.0)
    return dataclasses.replace(recipe, model={}, training=training, options=options)


def fit(recipe: Recipe, name: str, folder: Path) -> None:
    """Fit a baseline to a recipe's splits and write metrics.json into `folder`.

    Raises:
        UserError: From `find`, for whatever is wrong with the data, or where there is a metrics.json already.
    """
    began = time.perf_counter()
    if (folder / "metrics.json").exists():
        raise UserError(
            f"expected a folder without results for the baseline {name!r}, got {str(folder / 'metrics.json')!r}; fit "
            f"it with `longspan compare RECIPE --baselines {name}`."
        )
    found = find(recipe.task, name).fit(recipe)
    metrics = {
        "baseline": name,
        "task": recipe.task.name,
        "chosen": found.chosen,
        **{split: scores.to_dict() for split, scores in found.scores.items()},
        "peak_memory_bytes": peak_memory(),
        "parameters": found.parameters,
        "seconds": time.perf_counter() - began,
    }
    write_json(folder / "metrics.json", metrics)


def main(arguments: Sequence[str]) -> int:
    """Run as a program on the path of a recipe, the baseline's name and consent to imports; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m longspan.verbs.fitting", allow_abbrev=False)
    parser.add_argument("recipe", type=Path)
    parser.add_argument("name")
    parser.add_argument("--allow-import", action="append", default=[])
    args = parser.parse_args(arguments)
    quieten_transformers()
    try:
        with imports.allow(*args.allow_import):
            fit(recipes.load(str(args.recipe)), args.name, args.recipe.parent)
    except KeyboardInterrupt:
        return 130
    except Exception as error:
        sentence = sentence_of(error)
        if sentence is None:
            raise
        print(f"longspan: {sentence}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
