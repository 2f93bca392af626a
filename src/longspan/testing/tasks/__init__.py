"""Checks of every task's promises to the verbs, which you can run on your own tasks: `check_task`."""

import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from longspan.tasks.base.task import Task
from longspan.testing.tasks.promises import (
    answers_over_http,
    bad_rows_keep_their_place,
    counts_copies,
    declares_itself,
    ends_at_its_deadline,
    evaluates_as_in_training,
    explains_or_says_why_not,
    formats_take_every_prediction,
    is_reported_on,
    lists_mistakes_or_says_why_not,
    one_training_run_at_a_time,
    other_rows_change_nothing,
    outputs_replace_links,
    plans_the_run_without_training,
    predicts_each_row_in_order,
    recipe_survives_its_file,
    refuses_unknown_options,
    resumes_to_the_same_weights,
    says_what_it_leaves_out,
    trains,
    what_comes_meanwhile_is_kept,
    wrong_readings_are_said,
)
from longspan.testing.tasks.subject import Subject

#: What each check is about, in the order in which they run: the rows of the table in docs/promises.md.
PROMISES: dict[str, tuple[Callable[[Subject], None], ...]] = {
    "declarations": (declares_itself, refuses_unknown_options, recipe_survives_its_file),
    "scores": (trains, evaluates_as_in_training),
    "resume": (resumes_to_the_same_weights,),
    "time budget": (ends_at_its_deadline,),
    "plans": (plans_the_run_without_training,),
    "links": (outputs_replace_links,),
    "locks": (one_training_run_at_a_time, what_comes_meanwhile_is_kept),
    "predictions": (predicts_each_row_in_order, other_rows_change_nothing),
    "duplicates": (counts_copies,),
    "wrong readings": (wrong_readings_are_said,),
    "reported truncation": (says_what_it_leaves_out,),
    "error rows": (bad_rows_keep_their_place,),
    "formats that read back": (formats_take_every_prediction,),
    "serving": (answers_over_http,),
    "mistakes": (lists_mistakes_or_says_why_not, is_reported_on),
    "explanations": (explains_or_says_why_not,),
}


def check_task(task: str | type[Task], data: Path | str, overrides: Sequence[str] = ()) -> None:
    """Train, resume, evaluate and predict with a task, and check everything that the verbs rely on.

    Prints how many checks it passed.

        from longspan.testing import check_task

        def test_my_task(tmp_path):
            check_task("mypackage.mytask.MyTask", write_some_examples(tmp_path / "data.csv"), ["model.dim=16"])

    Args:
        task: Its name, or the class.
        data: A few hundred examples in any form that `data.path` takes; a few seconds of training are enough.
        overrides: Further settings of the recipe, such as a small size of the model.

    Raises:
        AssertionError: The first broken promise, in one sentence.
    """
    number = 0
    with tempfile.TemporaryDirectory() as folder:
        for _, check in task_checks(task, data, Path(folder), overrides):
            check()
            number += 1
    print(f"{task if isinstance(task, str) else task.__name__} keeps the promises: {number} checks.")


def task_checks(
    task: str | type[Task], data: Path | str, folder: Path, overrides: Sequence[str] = ()
) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield each check's name and the function that runs it, in the order of `PROMISES`; they share one trained run."""
    name = task if isinstance(task, str) else f"{task.__module__}.{task.__qualname__}"
    subject = Subject(name, str(data), folder, overrides)
    for checks in PROMISES.values():
        for check in checks:
            yield check.__name__, functools.partial(check, subject)
