"""Score a trained model: `evaluate`."""

import importlib
import json
from pathlib import Path
from typing import Any

from longspan.runs import load_run


def evaluate(run_dir: Path | str, data: str | None = None, split: str = "test") -> dict[str, Any]:
    """Score a run on one split of its own data, or on other data.

    Args:
        run_dir: The run folder.
        data: A file or folder in any form a recipe's `data.path` takes; all of it is scored unless it has splits of
            its own. None is the run's own data.
        split: Which split to score.

    Returns:
        What the task's `evaluate` in `longspan.evaluation` returns, with `task` and `folder`, where `metrics.json` and
        the pictures are written.

    Raises:
        UserError: No such run or split, or data that do not fit the model.
    """
    run = load_run(run_dir)
    folder = run.folder / "evaluation"
    folder.mkdir(exist_ok=True)
    scores = importlib.import_module(f"longspan.evaluation.{run.recipe.task}").evaluate(run, data, split, folder)
    result: dict[str, Any] = {"task": run.recipe.task, **scores, "folder": str(folder)}
    (folder / "metrics.json").write_text(json.dumps(result, indent=2, ensure_ascii=False), encoding="utf-8")
    return result
