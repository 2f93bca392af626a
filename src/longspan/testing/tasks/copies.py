"""What becomes of examples that training and validation have in common."""

from pathlib import Path

from longspan.testing.tasks.subject import Subject, need


def counts_copies(subject: Subject) -> None:
    """Examples of the validation split that are in the training split as well are counted."""
    if subject.task().one_source:
        return
    # A folder may have others for each split, such as MINDsmall_train.
    source = next(iter(Path(subject.data).glob("*train")), subject.data)
    both = [f"data.train={source}", f"data.validation={source}"]
    prepared = subject.task().prepare(subject.recipe(["data.path=", *both]))
    found = prepared.data.get("duplicates", {}).get("validation", {}).get("in_train", 0)
    need(found > 0, "examples that are in two splits must be counted in the data's 'duplicates'")
