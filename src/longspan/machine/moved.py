"""Modules that have moved: tasks, recipes and code of others import them by the names that they had."""

import importlib
import sys
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

#: Where the documentation once said that they are, and where they are.
MOVED = {
    "longspan.explanations.looks": "longspan.explanations.question",
    "longspan.mixers._looks": "longspan.mixers.looks",
    "longspan.mixers._pairwise": "longspan.mixers.looks",
    "longspan.models.copying": "longspan.models.parts.copying",
    "longspan.models.losses": "longspan.models.parts.losses",
    "longspan.models.positions": "longspan.models.parts.positions",
    "longspan.results.explanation": "longspan.report.explanation",
    "longspan.results.run_report": "longspan.report.run_report",
    "longspan.tasks.bags": "longspan.tasks.base.baselines.bags",
    "longspan.tasks.baselines": "longspan.tasks.base.task",
    "longspan.tasks.classes": "longspan.tasks.base.classes",
    "longspan.tasks.counts": "longspan.tasks.base.task",
    "longspan.tasks.documents": "longspan.tasks.base.documents",
    "longspan.tasks.embeddings": "longspan.tasks.base.baselines.embeddings",
    "longspan.tasks.examples": "longspan.tasks.base.examples",
    "longspan.tasks.explaining": "longspan.tasks.base.case",
    "longspan.tasks.mistakes": "longspan.tasks.base.mistakes",
    "longspan.tasks.options": "longspan.tasks.base.options",
    "longspan.tasks.prepared": "longspan.tasks.base.task",
    "longspan.tasks.recipe": "longspan.tasks.base.task",
}


class MovedModules(MetaPathFinder, Loader):
    """Imports a module that has moved when its former name is imported. Only names in `MOVED` are affected."""

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to Python to make an empty module, whose names are those of the module that has moved."""

    def exec_module(self, module: ModuleType) -> None:
        moved = importlib.import_module(MOVED[module.__name__])
        module.__getattr__ = lambda name: getattr(moved, name)  # type: ignore[method-assign]


def install() -> None:
    """Let Python find modules by their former names, after all other ways to find them."""
    if not any(isinstance(finder, MovedModules) for finder in sys.meta_path):
        sys.meta_path.append(MovedModules())
