"""What is learned: one file per task, named by a recipe's `task`.

A task module offers `prepare(data) -> Prepared`, `build_model(settings, prepared)`, `MODEL` (the class of its models)
and `score(logits, labels, names)`, which returns a dictionary of scores.
"""

import importlib
import pkgutil
from types import ModuleType

from longspan.errors import check_choice


def names() -> list[str]:
    """Return the names of the tasks, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def load(name: str) -> ModuleType:
    """Return the module of the task called `name`. Raises UserError when there is none."""
    check_choice("task", name, names())
    return importlib.import_module(f"{__name__}.{name}")
