"""Score a trained model: `evaluate`."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from longspan.data.config import SourceData
from longspan.data.sources.files.addresses import is_copy, named
from longspan.errors import UserError
from longspan.machine.printing import note
from longspan.options import make
from longspan.results import Evaluation
from longspan.results.mistakes import Mistakes
from longspan.results.outputs import folder_in, write_json
from longspan.tasks.base.options import EvaluationOptions
from longspan.tasks.base.task import Run
from longspan.verbs import report_contents
from longspan.verbs.runs import as_run


def evaluate(
    run: Run | Path | str,
    data: Any = None,
    split: str | None = None,
    overrides: Sequence[str] = (),
    *,
    checkpoint: int | str | None = None,
    allow_imports: Iterable[str] = (),
    **options: Any,
) -> Evaluation:
    """Score a run on one split of its own data, or on other data.

    Args:
        run: The run folder, or what `longspan.verbs.runs.load_run` returned for it.
        data: A file or folder in any form a recipe's `data.path` takes, or data in memory, as for `longspan.train`. All
            of it is scored unless it has its own splits. None means the run's own data.
        split: Which split to score; by default test, or validation where there is no test split, which is then told.
        overrides: How the data are read where that differs from training, as for `longspan.recipes.load`, such as
            ["data.encoding=auto", "data.label_column=stars"].
        checkpoint: The model saved after this step, or "last"; by default, the run's final model.
        allow_imports: Packages or modules that dotted paths in the run folder may import.
        options: The task's evaluation options; for language modelling see
            `longspan.tasks.language_modelling.options.EvaluationOptions`.

    Returns:
        The scores and the worst mistakes, which are also written to `evaluation/metrics.json` in the run folder, next
        to figures of them; those of a checkpoint to `evaluation/checkpoint-STEP`. `report.html` in the run folder, or
        there, is a page with them.

    Raises:
        UserError: No such run or split, options that the task does not have, data that do not fit the model, or
            overrides of tokens or of model and training.
    """
    loaded = as_run(run, checkpoint, allow_imports, overrides)
    task = loaded.task
    chosen: Any = make(task.evaluation_options, options, f"evaluating the task {task.name!r} of {str(loaded.folder)!r}")
    # Beside the scores of the final model, not in their place.
    below = [] if loaded.checkpoint is None else [f"checkpoint-{loaded.checkpoint}"]
    folder = folder_in(loaded.folder, "evaluation", *below)
    # Options of a task outside the package need not be ours.
    wanted = chosen.split if isinstance(chosen, EvaluationOptions) else None
    split = split or (wanted if data is None else None)
    result, examples = scored(loaded, data, split, chosen, folder)
    if split is None and result.split == "validation":
        note("there is no test split, so these are scores of the validation split, which chose the model that was kept")
    if wanted is not None and result.split == "test":
        note("least probabilities were chosen on the test split, whose scores with them are then too good")
    if data is None and 0 < (share := loaded.recipe.data.sample) < 1:
        note(f"scores are of a sample, as the run reads {100 * share:.2g}% of the rows of its data (data.sample)")
    write_json(folder / "metrics.json", result.to_dict())
    report_contents.write_evaluated(loaded, result, examples)
    return result


def scored(run: Run, data: Any, split: str | None, options: Any, folder: Path) -> tuple[Evaluation, Any]:
    """Score a run as `evaluate` does, and return the result and the examples.

    Args:
        run: The model, with the settings of its data.
        data: Other data than the run's own; None for these.
        split: Which split, as for `load_split`.
        options: The task's `evaluation_options`.
        folder: Folder of figures.

    Raises:
        UserError: There is no such split, or it cannot be scored.
    """
    task = run.task
    task.check_packages()
    examples, skipped, split, source = load_split(run, data, split)
    scores, details = task.evaluate(run, examples, split, options, folder)
    # Of examples with files of their own, reading shows which are bad.
    skipped = {**skipped, **details.pop("skipped", {})}
    unknown = Mistakes("", reason=f"The task {task.name!r} does not say what is wrong: its evaluation has no mistakes.")
    result = Evaluation(
        task.name,
        split,
        source,
        scores,
        details,
        skipped,
        str(folder),
        run.checkpoint,
        mistakes=details.pop("mistakes", unknown),
        label_issues=details.pop("label_issues", None),
    )
    return result, examples


def load_split(run: Run, data: Any, split: str | None) -> tuple[Any, dict[str, int], str, str]:
    """Examples to score, the rows skipped by reason, the split's name, and their source.

    Without a `split` it is the test split, or the validation split where there is no other.
    """
    config, task = run.recipe.data, run.task
    if data is not None:
        stored = {"streaming": False} if hasattr(config, "streaming") else {}
        config = task.reading(dataclasses.replace(config, **stored), data)
        config = dataclasses.replace(config, validation_fraction=0.0, test_fraction=0.0, sample=1.0)
    loaded = task.splits(config) if data is None else task.other_splits(run, config)
    if data is not None and set(loaded.splits) == {"train"}:
        return loaded.splits["train"], loaded.skipped, "all", _source(config, "train")
    if split is None:
        split = "validation" if "test" not in loaded.splits and "validation" in loaded.splits else "test"
    if split not in loaded.splits:
        found = ", ".join(loaded.splits)
        raise UserError(
            f"expected a split {split!r} in {_source(config, split) or 'the data of this run'!r}, got only {found}; "
            "name one with --split, or other data with --data."
        )
    return loaded.splits[split], loaded.skipped, split, _source(config, split)


def _source(config: SourceData, split: str) -> str:
    """Source of a split, for results."""
    path = getattr(config, split, "") or config.path
    return named(path) if is_copy(path) else str(path)
