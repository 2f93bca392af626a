"""Score a trained model: `evaluate`."""

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

from longspan.errors import UserError
from longspan.runs import load_run


def evaluate(run_dir: Path | str, data: str | None = None, split: str = "test", **options: Any) -> dict[str, Any]:
    """Score a run on one split of its own data, or on other data.

    Args:
        run_dir: The run folder.
        data: A file or folder in any form a recipe's `data.path` takes; all of it is scored unless it has splits of
            its own. None is the run's own data.
        split: Which split to score.
        options: What else the task's `evaluate` in `longspan.evaluation` takes.

    Returns:
        What the task's `evaluate` returns, with `task` and `folder`, where `metrics.json` and the pictures are written.

    Raises:
        UserError: No such run or split, options that the task does not have, or data that do not fit the model.
    """
    run = load_run(run_dir)
    task = importlib.import_module(f"longspan.evaluation.{run.recipe.task}")
    known = inspect.signature(task.evaluate).parameters
    for option in options:
        if option not in known:
            raise UserError(
                f"--{option.replace('_', '-')} is not for the task {run.recipe.task!r} of {str(run.folder)!r}: "
                "leave it out."
            )
    folder = run.folder / "evaluation"
    folder.mkdir(exist_ok=True)
    scores = task.evaluate(run, data, split, folder, **options)
    result: dict[str, Any] = {"task": run.recipe.task, **scores, "folder": str(folder)}
    (folder / "metrics.json").write_text(json.dumps(result, indent=2, ensure_ascii=False), encoding="utf-8")
    return result
