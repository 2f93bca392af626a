"""Checks of every task's promises to the verbs, which you can run on your own tasks: `check_task`."""

import functools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from longspan.tasks.base.task import Task
from longspan.testing.tasks import promises
from longspan.testing.tasks.subject import Subject

#: What each check is about, in the order in which they run: the rows of the table in docs/promises.md.
PROMISES: dict[str, tuple[Callable[[Subject], None], ...]] = {
    "declarations": (promises.declares_itself, promises.refuses_unknown_options, promises.recipe_survives_its_file),
    "scores": (promises.trains, promises.evaluates_as_in_training),
    "resume": (promises.resumes_to_the_same_weights,),
    "time budget": (promises.ends_at_its_deadline,),
    "plans": (promises.plans_the_run_without_training,),
    "links": (promises.outputs_replace_links,),
    "locks": (promises.one_training_run_at_a_time, promises.what_comes_meanwhile_is_kept),
    "predictions": (promises.predicts_each_row_in_order, promises.other_rows_change_nothing),
    "duplicates": (promises.counts_copies,),
    "wrong readings": (promises.wrong_readings_are_said,),
    "reported truncation": (promises.says_what_it_leaves_out,),
    "error rows": (promises.bad_rows_keep_their_place,),
    "formats that read back": (promises.formats_take_every_prediction,),
    "serving": (promises.answers_over_http,),
    "mistakes": (promises.lists_mistakes_or_says_why_not, promises.is_reported_on),
    "explanations": (promises.explains_or_says_why_not,),
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
