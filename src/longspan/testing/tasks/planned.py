"""What plans promise: the steps of the run, and numbers that make sense, without training or writing."""

import json
import math

from longspan.testing.tasks.subject import Subject, need
from longspan.verbs.plan import plan


def plans_the_run_without_training(subject: Subject) -> None:
    """`plan` predicts time, memory and the number of steps for each mixer and length, and writes nothing."""
    before = sorted(subject.folder.rglob("*"))
    found = plan(subject.file, subject.overrides, seconds=0.0, progress=False, allow_imports=subject.consent)
    need(sorted(subject.folder.rglob("*")) == before, "a plan must write nothing")
    need(bool(found.runs), "a plan must have a row for each mixer")
    for run in found.runs:
        numbers = (run.seconds_per_step, run.tokens_per_second, run.peak_memory_bytes, run.seconds)
        need(all(0 < value < math.inf for value in numbers), f"time and memory must be above 0, but are {numbers}")
    need(json.loads(json.dumps(found.to_dict())) == found.to_dict(), "a plan must survive JSON")
    # The recipe's own mixers come first, and its own length last.
    steps = found.of(found.runs[0].mixer).steps
    taken = subject.trained().planned_steps
    need(steps == taken, f"{taken} steps were trained, but {steps} planned")
