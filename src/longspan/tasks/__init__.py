"""Tasks: one folder per task, found by its name; a task outside this package by its dotted path.

`longspan.tasks.NAME.task` has the class, NAME in CamelCase, and `longspan.tasks.NAME.options` its options, which import
nothing heavy. `longspan.tasks.NAME.program`, where there is one, has `ANSWERING`, by which exported programs predict.
"""

import importlib.util
import pkgutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from longspan.errors import check_choice
from longspan.machine.imports import load_class, modules_in
from longspan.tasks.base.options import PredictionOptions

if TYPE_CHECKING:
    from longspan.tasks.base.answering import Answering
    from longspan.tasks.base.task import Task


def names() -> list[str]:
    """Return the names of the built-in tasks, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if module.ispkg and module.name != "base")


def load(name: str, allow_imports: Iterable[str] = ()) -> "Task":
    """Return the task called `name`, or of the class at the dotted path `name`.

    Raises:
        UserError: Unknown task, or importing it was not allowed (see `longspan.machine.imports`).
    """
    from longspan.tasks.base.task import Task

    if "." in name:
        return load_class(name, Task, what="task", allow_imports=allow_imports)(name)
    check_choice("task", name, names())
    module = importlib.import_module(f"{__name__}.{name}.task")
    found: Task = getattr(module, name.title().replace("_", ""))(name)
    return found


def evaluation_options(name: str) -> type:
    """Return the evaluation options of the built-in task called `name`, without importing the task itself."""
    options: type = importlib.import_module(f"{__name__}.{name}.options").EvaluationOptions
    return options


def prediction_options(name: str) -> type:
    """Return the prediction options of the built-in task called `name`, without importing the task itself."""
    module = importlib.import_module(f"{__name__}.{name}.options")
    options: type = getattr(module, "PredictionOptions", PredictionOptions)
    return options


def answering(name: object) -> "type[Answering] | None":
    """Class by which exports of a built-in task predict, if it has one of its own; PyTorch is not imported."""
    module = f"{__name__}.{name}.program"
    if name not in names() or importlib.util.find_spec(module) is None:
        return None
    found: type[Answering] = importlib.import_module(module).ANSWERING
    return found


def baseline_names(task: str) -> list[str]:
    """Return the names of the baselines of the built-in task `task`, sorted, without importing any of them."""
    return list(modules_in(*(str(Path(path, task, "baselines")) for path in __path__)))
