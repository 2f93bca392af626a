"""The `TrainingArguments` of a recipe: `arguments_of`."""

import torch
from transformers import TrainingArguments

from longspan.errors import UserError, check_choice
from longspan.machine.printing import shows_bars
from longspan.recipes.keys import UNWRITTEN_DEFAULTS
from longspan.tasks.base import Recipe
from longspan.training import processes
from longspan.training.arguments import Arguments
from longspan.training.requirements import check_packages
from longspan.training.stopping import check_early_stopping
from longspan.verbs.run_folders import RunFolder


def arguments_of(recipe: Recipe, folder: RunFolder, progress: bool) -> TrainingArguments:
    """Return the arguments of a recipe's training.

    Args:
        recipe: The recipe.
        folder: The run folder, whose name is that of a repository on the Hub.
        progress: Whether progress is shown.

    Raises:
        UserError: Values of `[training]` do not fit together, or need a package that is not installed.
    """
    chosen = recipe.training
    check_packages(chosen)
    evaluated = chosen.get("eval_strategy", UNWRITTEN_DEFAULTS["eval_strategy"])
    every = chosen.get("eval_steps", chosen.get("logging_steps", UNWRITTEN_DEFAULTS["logging_steps"]))
    kind = recipe.task.scores
    metric = chosen.get("metric_for_best_model") or kind.headline()
    check_choice("training.metric_for_best_model", metric, list(kind.shown()))
    defaults = UNWRITTEN_DEFAULTS | {
        # What is saved is what was scored; without scores there is no best model.
        "save_strategy": "epoch" if evaluated == "no" else evaluated,
        **({"save_steps": every} if evaluated == "steps" else {}),
        "load_best_model_at_end": evaluated != "no",
        "metric_for_best_model": metric,
        "greater_is_better": kind.higher_is_better(metric),
        # In a log file each update of a bar would stay.
        "disable_tqdm": not (progress and shows_bars()),
        # Otherwise processes without a GPU would not find each other.
        "use_cpu": not torch.accelerator.is_available(),
        # All weights take part in each step.
        "ddp_find_unused_parameters": False,
        "ddp_timeout": int(processes.PATIENCE.total_seconds()),
        "log_level_replica": "error",
        "remove_unused_columns": False,
        "hub_model_id": folder.path.absolute().name if chosen.get("push_to_hub") else None,
    }
    try:
        arguments = Arguments(output_dir=str(folder.checkpoints), **{**defaults, **chosen})
    except (ValueError, TypeError) as error:
        raise UserError(f"the recipe's [training] does not fit together: {error}") from error
    if recipe.options.average_last and arguments.save_total_limit is not None:
        # The best one as well.
        arguments.save_total_limit = max(arguments.save_total_limit, recipe.options.average_last + 1)
    check_early_stopping(recipe.options.early_stopping_patience, arguments)
    return arguments
