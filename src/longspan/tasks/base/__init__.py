"""The class `Task` and everything that tasks share."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from longspan.tasks.base.task import Baseline, D, Fitted, O, Recipe, Run, Task

__all__ = ["Baseline", "D", "Fitted", "O", "Recipe", "Run", "Task"]


def __getattr__(name: str) -> Any:
    # Only when asked for: options are read for `--help`, which imports nothing heavy.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from longspan.tasks.base import task

    return getattr(task, name)
