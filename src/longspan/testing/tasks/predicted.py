"""What a task's predictions promise: one for each row, in order, whatever the others hold."""

import json

from longspan.data.sources.formats.rows import Row
from longspan.machine.printing import json_text
from longspan.testing.tasks.subject import Subject, need, same
from longspan.verbs.predict import predict


def predicts_each_row_in_order(subject: Subject) -> None:
    """Each row has a prediction, in order, and no rows have none."""
    rows = subject.rows()
    found = list(predict(subject.run(), rows))
    need([one.where for one in found] == [row.where for row in rows], "predictions must come row by row, in order")
    for one in found:
        need(one.error is None, f"{one.where} must have a prediction, but has the error {one.error!r}")
        json.dumps(one.to_dict())
    need(not list(predict(subject.run(), [])), "no rows must give no predictions")


def bad_rows_keep_their_place(subject: Subject) -> None:
    """A row that cannot be read has its problem as the error, in its place."""
    good = subject.rows()[:2]
    bad = Row({}, "the bad row", "broken UTF-8")
    found = list(predict(subject.run(), [good[0], bad, good[1]]))
    need([one.where for one in found] == [good[0].where, "the bad row", good[1].where], "bad rows keep their place")
    need(found[1].error == "broken UTF-8", "a bad row must have its problem as the error")
    kinds = {type(one).__name__ for one in found} | {subject.task().prediction.__name__}
    told = ", ".join(sorted(kinds))
    need(len(kinds) == 1, f"predictions and errors must be of the class that the task names, but are {told}")
    need(found[0].error is None and found[2].error is None, "a bad row must not spoil others")


def formats_take_every_prediction(subject: Subject) -> None:
    """JSON lines hold what predictions do, on one line without control characters; so it is for errors."""
    run = subject.run()
    rows = [*subject.rows(), Row({}, "a\x1b[31m\n\u2028b.csv, row 7", "broken UTF-8")]
    for found in predict(run, rows):
        line = json_text(found.to_dict())
        need(json.loads(line) == json.loads(json.dumps(found.to_dict())), f"{found.where}: JSON must be read back")
        controls = [ord(character) for character in line if not " " <= character < "\x7f" and character < "\xa0"]
        need(
            not controls and "\u2028" not in line, f"a line of JSON must have no control characters, but has {controls}"
        )
        for name, write in run.task.formats().items():
            need(isinstance(write(found), str), f"the format {name} must give a text for every prediction")


def other_rows_change_nothing(subject: Subject) -> None:
    """A prediction does not depend on other rows."""
    rows, run = subject.rows(), subject.run()
    for row, together in zip(rows, predict(run, rows), strict=True):
        (alone,) = predict(run, [row])
        same(alone.to_dict(), together.to_dict(), row.where)
