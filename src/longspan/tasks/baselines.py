"""Baselines of a package, found by their files: `baselines_in`."""

import importlib
import pkgutil
from types import ModuleType

from longspan.tasks.base import Baseline


def baselines_in(package: ModuleType) -> dict[str, type[Baseline]]:
    """Return the baselines of a package by name: each file has a class of its name in CamelCase.

    Files whose names begin with "_" hold what they share.
    """
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if not module.name.startswith("_")]
    return {
        name: getattr(importlib.import_module(f"{package.__name__}.{name}"), name.title().replace("_", ""))
        for name in names
    }
