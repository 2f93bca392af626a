"""What `train`, `evaluate`, `compare` and `write_report` put into reports."""

import re
import shlex
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from datasets import Dataset

from longspan.data.processor import json_object
from longspan.data.sources.formats.rows import Row
from longspan.errors import UserError
from longspan.report.run_report import NAME, ComparisonReport, RunReport
from longspan.results import Evaluation, TrainingResult
from longspan.results.html import png_address
from longspan.tasks.base.task import Run, Task
from longspan.verbs.report_words import read_rows, read_tokens, weighed_words

#: Documents from which words are taken.
_SAMPLE = 300
_ROW = re.compile(r"(?P<file>.*), (?P<kind>row|line) (?P<number>\d+)")


def after_training(run: Run, result: TrainingResult, figures: Path, validation: Dataset) -> RunReport:
    """Return the report of a run that was just trained, for which the model computes nothing more.

    Args:
        run: The model.
        result: Its results.
        figures: Where its figures are.
        validation: The validation split as the model reads it.
    """
    rows = islice(read_tokens(run, validation), _SAMPLE) if _has_weights(run) else ()
    told = f"The worst mistakes are missing: {shlex.join(['longspan', 'report', str(run.folder)])} adds them."
    return made(run, result, pictures(figures), words=weighed_words(run, rows), notes=[told])


def write_evaluated(run: Run, evaluation: Evaluation, examples: Any) -> None:
    """Write the report of a run with an evaluation: next to the run's files, or to those of a checkpoint."""
    notes = []
    try:
        result = recorded(run)
    except UserError as error:
        # The evaluation was made without them.
        result, notes = TrainingResult(run.task.name, str(run.folder)), [f"Results of training are missing: {error}"]
    words = weighed_words(run, read_rows(run, sampled(run, examples))) if _has_weights(run) else None
    figures = pictures(run.folder) | pictures(Path(evaluation.folder))
    found = made(run, result, figures, evaluation=evaluation, words=words, notes=notes)
    found.save(place(run))


def comparison_report(folder: Path) -> ComparisonReport:
    """Return the report of a folder that `compare` wrote.

    Raises:
        UserError: Its `comparison.json` is damaged.
    """
    values = json_object(folder / "comparison.json")
    found = sorted(path for path in folder.glob(f"*/{NAME}") if path.is_file())
    links = {path.parent.name: quote(f"./{path.parent.name}/{NAME}") for path in found}
    return ComparisonReport(values, pictures(folder), links)


def place(run: Run) -> Path:
    """Return where the report of a run goes; that of a checkpoint goes beside its scores."""
    below = () if run.checkpoint is None else ("evaluation", f"checkpoint-{run.checkpoint}")
    return run.folder.joinpath(*below, NAME)


def recorded(run: Run) -> TrainingResult:
    """Return the results of training; empty ones if the folder has none. Raises UserError if they are damaged."""
    path = run.folder / "metrics.json"
    values = json_object(path) if path.is_file() else {}
    return TrainingResult.from_dict({**values, "task": run.task.name, "folder": str(run.folder)}, run.task.scores)


def sampled(run: Run, examples: Any) -> Iterator[Row]:
    """Yield some examples of a split, evenly spaced, as predictions read them; none of what is no table of them."""
    if not isinstance(examples, Dataset) or "where" not in examples.column_names:
        return
    names = [one.name for one in run.task.inputs(run.recipe.data) if one.name in examples.column_names]
    count = min(_SAMPLE, len(examples))
    for number in np.linspace(0, len(examples) - 1, count).round().astype(int).tolist():
        row = examples[number]
        yield Row({name: row[name] for name in names}, row["where"])


def pictures(folder: Path) -> dict[str, str]:
    """Return the PNG figures of a folder as `data:` addresses, by title."""
    found = {path.stem.replace("_", " ").capitalize(): png_address(path) for path in sorted(folder.glob("*.png"))}
    return {title: address for title, address in found.items() if address}


def made(run: Run, result: TrainingResult, figures: Mapping[str, str], **more: Any) -> RunReport:
    """Return a report with these and `more` of its fields."""
    recipe, evaluation = run.recipe, more.get("evaluation")
    return RunReport(
        name=recipe.name,
        description=recipe.description,
        result=result,
        recipe=recipe.to_toml(),
        figures=figures,
        commands={} if evaluation is None else _commands(run, evaluation),
        baselines=_baselines(run.folder),
        **more,
    )


def _has_weights(run: Run) -> bool:
    return getattr(run.model, "wide", None) is not None


def _commands(run: Run, evaluation: Evaluation) -> dict[str, str]:
    """Return the commands that explain examples with mistakes, by their places, where these are files."""
    if type(run.task).case is Task.case:
        return {}
    lists = [evaluation.mistakes, *([evaluation.label_issues] if evaluation.label_issues else [])]
    found = {}
    for where in {one.where: None for mistakes in lists for one in mistakes.worst}:
        row = _ROW.fullmatch(where)
        name, source = row["file"] if row else where, Path(evaluation.data)
        path = source if row and source.name == name else source / name
        number = _number(path, row["kind"], int(row["number"])) if row and path.is_file() else 0
        if path.is_file() and (number or not row):
            chosen = ["--row", str(number)] if number else []
            found[where] = shlex.join(["longspan", "explain", str(run.folder), str(path), *chosen])
    return found


def _number(path: Path, kind: str, number: int) -> int:
    """Return the number of an example from its row or line in a file; 0 where a line does not say it."""
    if kind == "row":
        return number
    if path.suffix != ".jsonl":
        return 0
    with path.open("rb") as lines:
        return sum(bool(line.strip()) for line in islice(lines, number))


def _baselines(folder: Path) -> list[dict[str, Any]]:
    """Return the baselines of the comparison that a run is a part of, if it is, by name with their scores."""
    path = folder.absolute().parent / "comparison.json"
    try:
        rows = json_object(path).get("baselines") if path.is_file() else []
    except UserError:
        return []
    kept = [row for row in rows if isinstance(row, dict) and "error" not in row] if isinstance(rows, list) else []
    return [{"baseline": row.get("baseline"), **_flat(row)} for row in kept]


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of a baseline by split and name."""
    return {
        f"{split} {name}": value
        for split in ("validation", "test")
        if isinstance(row.get(split), Mapping)
        for name, value in row[split].items()
    }
