"""What is learned: one file per task, named by a recipe's `task`.

A task module offers
    MODEL, the class of its models;
    SCORES, the scores that tables show by the name they have there: the first one is also drawn, and chooses the best
        epoch, the greatest of them or, with LOWER_IS_BETTER, the least;
    prepare(data), which reads the data and makes tokens;
    build_model(settings, prepared), a new model;
    make_trainer(model, arguments, training, prepared), the Hugging Face `Trainer` for it;
    final_scores(trainer, prepared), the scores of each split but the training's, by split.
Files of the same name in `longspan.evaluation` and `longspan.report` score and print it.
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
