"""What a task's explanations promise: a score for each position, or a sentence that says why there are none."""

import html
import json
import math

from longspan.errors import UserError
from longspan.explanations.methods import METHODS
from longspan.tasks.explaining import explained
from longspan.testing.tasks.subject import Subject, need


def explains_or_says_why_not(subject: Subject) -> None:
    """Every method scores each position that was read, or the task refuses in one sentence."""
    run, row = subject.run(), subject.rows()[0]
    for method in METHODS:
        try:
            found = explained(run.task.case(run, row, "", None), method, False)
        except UserError as error:
            need(error.args[0].count("\n") == 0, "a refusal must be one sentence")
            need(method in ("weight", next(iter(METHODS))), f"{method} must not be refused if other methods are not")
            return
        need(len(found.scores) == len(found.spans) > 0, f"{method} must score each position")
        need(any(found.scores), f"scores of {method} must not all be zero: of what is read, something counts")
        need(all(map(math.isfinite, found.scores)), f"scores of {method} must be finite")
        need(json.loads(json.dumps(found.to_dict())) == found.to_dict(), "JSON must be read back")
        need(found.where.startswith(row.where), "an explanation must say which row it is about")
        need(found.where in html.unescape(found.page()), "a page must say what was explained")
