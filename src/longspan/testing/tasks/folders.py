"""What run folders promise: nothing of others is lost, and one training run at a time writes there."""

import shutil
from pathlib import Path
from typing import Any

from longspan.errors import UserError
from longspan.machine import locks
from longspan.testing.tasks.subject import Subject, need
from longspan.verbs.evaluate import evaluate
from longspan.verbs.train import train


def outputs_replace_links(subject: Subject) -> None:
    """A link in a run folder, in place of a file to be written, is replaced, and what it leads to is kept."""
    run, notes = subject.folder / "linked", subject.folder / "notes"
    shutil.copytree(subject.trained().folder, run)
    if not (run / "evaluation").exists():
        evaluate(run, split="validation", allow_imports=subject.consent)
    written = [path for path in (run / "evaluation").rglob("*") if path.is_file()]
    for path in written:
        path.unlink()
        path.symlink_to(notes)
    notes.write_text("mine")
    evaluate(run, split="validation", allow_imports=subject.consent)
    need(notes.read_text() == "mine", "an evaluation must not write through links in the run folder")
    for path in written:
        need(path.is_file() and not path.is_symlink(), f"an evaluation must write {path.name} in place of a link")
    shutil.rmtree(run / "evaluation")
    (run / "evaluation").symlink_to(subject.folder)
    try:
        evaluate(run, split="validation", allow_imports=subject.consent)
    except UserError:
        return
    raise AssertionError("an evaluation must refuse to write into a folder that is a link.")


def one_training_run_at_a_time(subject: Subject) -> None:
    """While one training run is at work in a folder, others are refused and change nothing."""
    run = subject.folder / "held"
    shutil.copytree(subject.trained().folder, run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with locks.held(run, "one training run"):
        ways: list[dict[str, Any]] = [{"resume": True}, {"overwrite": True}, {"finish": True}]
        for way in ways:
            more = ["training.num_train_epochs=3"] if "resume" in way else []
            try:
                train(subject.recipe(more), run=run, progress=False, allow_imports=subject.consent, **way)
            except UserError:
                continue
            raise AssertionError(f"a second training run with {next(iter(way))} must be refused.")
    after = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    need(after == before, "a training run that is refused must change nothing")


def what_comes_meanwhile_is_kept(subject: Subject) -> None:
    """Files that somebody puts into the folder of a new run while its data are prepared are not deleted."""
    run, recipe = subject.folder / "meanwhile", subject.recipe()
    task = type(recipe.task)
    usual = task.make_trainer

    def make_trainer(*arguments: Any) -> Any:
        (run / "thesis.txt").write_text("my only copy")
        return usual(*arguments)

    try:
        task.make_trainer = make_trainer  # type: ignore[method-assign,assignment]
        train(recipe, run=run, progress=False, allow_imports=subject.consent)
    except UserError:
        pass
    else:
        raise AssertionError("a new run must be refused where files have come into its folder.")
    finally:
        task.make_trainer = usual  # type: ignore[method-assign]
    need([path.name for path in Path(run).iterdir()] == ["thesis.txt"], "what came into the folder must stay, alone")
