"""What a task's evaluation promises about mistakes: the worst ones, or a sentence that says why there is no list."""

import json
import math

from longspan.results.mistakes import MOST, Mistakes
from longspan.results.run_report import RunReport
from longspan.testing.tasks.subject import Subject, need
from longspan.verbs.evaluate import evaluate
from longspan.verbs.report import write_report


def lists_mistakes_or_says_why_not(subject: Subject) -> None:
    """`evaluate` lists what the model gets wrong, the worst first, with its place; so it is for likely wrong labels."""
    evaluation = evaluate(subject.run(), split="validation")
    found = evaluation.mistakes
    need(isinstance(found, Mistakes), f"the mistakes must be Mistakes, but are {found!r}")
    if found.reason:
        need("\n" not in found.reason and found.reason.endswith("."), "the reason for no list must be one sentence")
        return
    _check("a mistake", found)
    if evaluation.label_issues is not None:
        _check("a label that is likely wrong", evaluation.label_issues)
    written = evaluation.to_dict()["mistakes"]
    need(json.loads(json.dumps(written)) == written, "mistakes must survive JSON")


def is_reported_on(subject: Subject) -> None:
    """`report` writes a page with the mistakes, in which nothing is missing."""
    path = subject.folder / "report.html"
    found = write_report(subject.run(), path)
    need(isinstance(found, RunReport) and found.evaluation is not None, "a report must have an evaluation")
    need(path.read_text(encoding="utf-8") == found.page(), "a report must be written as it is returned")
    json.dumps(found.to_dict())


def _check(what: str, found: Mistakes) -> None:
    need(bool(found.measure), f"{what} must have a measure that says what its score is")
    need(len(found.worst) == min(found.count, MOST), f"at most {MOST} of {found.count} must be listed")
    scores = [one.score for one in found.worst]
    need(all(map(math.isfinite, scores)), f"the score of {what} must be finite, but scores are {scores}")
    need(
        scores in (sorted(scores), sorted(scores, reverse=True)),
        f"the worst must come first, but scores are {scores}",
    )
    for one in found.worst:
        need(bool(one.where), f"{what} must have a place")
        need(bool(one.expected), f"{one.where}: {what} must say what is right")
