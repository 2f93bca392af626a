"""Contracts, as checks that you can run on your own code: `check_mixer(MyMixer)`, `check_task("package.MyTask")`,
`check_model("mamba")`.

They follow scikit-learn's `check_estimator` and `parametrize_with_checks`. Nothing here needs pytest.
"""

import importlib
from typing import Any

_LAZY = {
    "check_mixer": "longspan.testing.mixers",
    "check_model": "longspan.testing.models",
    "check_task": "longspan.testing.tasks",
    "mixer_checks": "longspan.testing.mixers",
    "model_checks": "longspan.testing.models",
    "task_checks": "longspan.testing.tasks",
}

__all__ = ["check_mixer", "check_model", "check_task", "mixer_checks", "model_checks", "task_checks"]


def __getattr__(name: str) -> Any:
    # Checking one kind of thing does not load what the others need.
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
