"""Which documents are scored."""

import dataclasses
from collections.abc import Callable
from typing import Any

from datasets import Dataset

from longspan.data.config import DataConfig
from longspan.data.sources import Splits
from longspan.errors import UserError
from longspan.runs import Run


def load_split(
    run: Run, data: str | None, split: str, load: Callable[[DataConfig], Splits]
) -> tuple[Dataset, Any, str, str]:
    """Load what is to be scored.

    Args:
        run: The run.
        data: A file or folder in any form a recipe's `data.path` takes; all of it is scored unless it has splits of
            its own. None is the run's own data.
        split: Which split to score.
        load: What reads data of the run's kind.

    Returns:
        The documents, the rows skipped by reason, the split's name, "all" for all of `data`, and where they are from.

    Raises:
        UserError: No such split, or what `load` raises.
    """
    config = run.recipe.data
    if data is not None:
        config = dataclasses.replace(
            config,
            path=str(data),
            train="",
            validation="",
            test="",
            validation_fraction=0.0,
            test_fraction=0.0,
            classes=0,
            files_per_class=0,
        )
    loaded = load(config)
    if data is not None and set(loaded.splits) == {"train"}:
        return loaded.splits["train"], loaded.skipped, "all", data
    if split not in loaded.splits:
        found = ", ".join(loaded.splits)
        raise UserError(
            f"{data or config.path or 'the data of this run'!r} has no split {split!r} but {found}: name one with "
            "--split, or other data with --data."
        )
    return loaded.splits[split], loaded.skipped, split, data or getattr(config, split) or config.path
