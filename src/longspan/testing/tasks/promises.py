"""Checks of training and scoring a task's models: complete results, resuming to the bit, equal scores."""

import base64
import dataclasses
import functools
import html
import itertools
import json
import math
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from longspan import options, recipes
from longspan.data.columns.annotations import Annotated
from longspan.data.columns.files import File
from longspan.data.columns.kinds import Column
from longspan.data.columns.literals import list_in
from longspan.data.columns.media import Media
from longspan.data.sources.formats.rows import Row
from longspan.data.sources.formats.schema import schema_of
from longspan.errors import UserError
from longspan.explanations.methods import METHODS
from longspan.machine import imports, locks
from longspan.machine.printing import json_text
from longspan.report.run_report import RunReport
from longspan.results import TrainingResult
from longspan.results.mistakes import MOST, Mistakes
from longspan.results.parts import BOTH, Parts
from longspan.results.scores import Scores
from longspan.serving.model import Limits, Service
from longspan.tasks.base.case import explained
from longspan.testing.tasks.subject import Subject, need, refused, same
from longspan.training.deadline import Deadline
from longspan.verbs.evaluate import evaluate
from longspan.verbs.plan import plan
from longspan.verbs.predict import predict
from longspan.verbs.report import write_report
from longspan.verbs.train import train


def trains(subject: Subject) -> None:
    """Training scores the validation split, writes what it returns, and a model card."""
    result = subject.trained
    kind = subject.task().scores
    need("validation" in result.scores, "training must score the validation split")
    for split, scores in result.scores.items():
        need(isinstance(scores, kind), f"the scores of {split} must be {kind.__name__}, but are {scores!r}")
        stored = json.loads(json.dumps(scores.to_dict()))
        try:
            survives = kind.from_dict(stored) == scores
        except UserError as error:
            raise AssertionError(f"the scores of {split} must survive JSON, but {error}") from error
        need(survives, f"the scores of {split} must survive JSON, but {stored} gives others than {scores!r}")
    written = json.loads((Path(result.folder) / "metrics.json").read_text(encoding="utf-8"))
    need(written == json.loads(json.dumps(result.to_dict())), "metrics.json must hold what training returned")
    card = (Path(result.folder) / "README.md").read_text(encoding="utf-8")
    need(card.startswith("---\n"), "the model card must begin as the Hugging Face Hub reads it")
    need(bool(subject.task().data_table(result.data).strip()), "data_table must show the splits")


def resumes_to_the_same_weights(subject: Subject) -> None:
    """A run that was killed and resumed ends with the weights of an uninterrupted one, and says the same of its parts,
    also where it was killed after its last step."""
    whole = subject.trained
    stopped = subject.folder / "stopped"
    shutil.copytree(whole.folder, stopped)
    # As if killed after the first epoch.
    (stopped / "metrics.json").unlink()
    found = sorted((stopped / "checkpoints").glob("checkpoint-*"), key=lambda path: int(path.name.split("-")[1]))
    need(len(found) > 1, "training must save a checkpoint per epoch")
    shutil.rmtree(found[-1])
    for when in ("after the first epoch", "after the last step"):
        resumed = train(subject.recipe(), run=stopped, resume=True, progress=False, allow_imports=subject.consent)
        first, second = (load_file(Path(run, "model.safetensors")) for run in (whole.folder, stopped))
        for name, weight in first.items():
            need(
                torch.equal(weight, second[name]),
                f"a run resumed {when} must end with the same weights, but {name} differs",
            )
        parts = [result.details.get("parts") for result in (whole, resumed)]
        need(parts[0] == parts[1], f"a run resumed {when} must say {parts[0]} of its parts, but says {parts[1]}")
        (stopped / "metrics.json").unlink()


def evaluates_as_in_training(subject: Subject) -> None:
    """`evaluate` gives the scores of training, those of a model's parts among them if it has any."""
    result = subject.trained
    evaluation = evaluate(subject.run(), split="validation")
    for name, value in result.scores["validation"].numbers().items():
        again = evaluation.scores.numbers()[name]
        # Different batches: sums in another order.
        need(abs(again - value) <= 1e-4 * max(1, abs(value)), f"{name} must be {value} as in training, got {again}")
    for what, found, scores in (
        ("training", result.details, result.scores["validation"]),
        ("evaluate", evaluation.details, evaluation.scores),
    ):
        if "parts" in result.details or "parts" in evaluation.details:
            _check_parts(what, found, scores)
    json.dumps(evaluation.to_dict())
    need(bool(subject.task().evaluation_report(evaluation).strip()), "evaluation_report must say something")


def _check_parts(what: str, details: Mapping[str, Any], scores: Scores) -> None:
    """Counts, network and both have one of the scores, and that of both is the model's."""
    need(
        "parts" in details, f"training and evaluate must both report the scores of a model's parts, but {what} does not"
    )
    try:
        parts = Parts.from_dict(details["parts"])
    except UserError as error:
        raise AssertionError(f"{what} must report a model's parts as Parts.to_dict, but {error}") from error
    numbers = scores.numbers()
    need(
        parts.score in numbers and parts.higher_is_better == scores.higher_is_better(parts.score),
        f"{what} must report a score of {type(scores).__name__} for a model's parts, but reports {parts.score!r}",
    )
    both, value = parts.values[BOTH], numbers[parts.score]
    need(
        abs(both - value) <= 1e-4 * max(1, abs(value)),
        f"{parts.score} of both parts must be that of the model, {value}, but {what} reports {both}",
    )


def ends_at_its_deadline(subject: Subject) -> None:
    """With `training.max_minutes`, a run ends at its deadline, and can be given more time."""
    run, usual = subject.folder / "budget", Deadline.clock
    seconds = itertools.count()

    def trained(minutes: float, **options: Any) -> TrainingResult:
        recipe = subject.recipe([f"training.max_minutes={minutes}", "training.num_train_epochs=1000"])
        return train(recipe, run=run, progress=False, allow_imports=subject.consent, **options)

    try:
        # A second passes whenever somebody looks at the clock, however fast the machine is.
        Deadline.clock = staticmethod(lambda: float(next(seconds)))  # type: ignore[method-assign]
        first = trained(0.5)
        more = trained(1, resume=True)
    finally:
        Deadline.clock = staticmethod(usual)  # type: ignore[method-assign]
    for result in (first, more):
        need(result.stopped == "deadline", f"a run must end at its deadline, but it was stopped by {result.stopped}")
    need(0 < first.steps < more.steps, f"with more time there must be more steps, not {first.steps} and {more.steps}")
    with imports.allow(*subject.consent):
        written = recipes.load(str(run / "recipe.toml"))
    need(written.options.max_minutes == 1, "the recipe of a run must have its time budget")


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


def declares_itself(subject: Subject) -> None:
    """The class says what it learns, what it measures, its options with defaults and help, and the columns it reads."""
    task = subject.task()
    need(bool((type(task).__doc__ or "").strip()), f"{subject.name} needs a docstring that says what it is")
    scores = getattr(task, "scores", None)
    need(
        isinstance(scores, type) and issubclass(scores, Scores),
        f"{subject.name}.scores must be a subclass of longspan.results.scores.Scores, but is {scores!r}",
    )
    need(bool(task.scores.shown()), f"{subject.name}.scores must show at least one score")
    for kind in (task.training_options, task.evaluation_options, task.data_config):
        need(dataclasses.is_dataclass(kind), f"{kind.__name__} must be a dataclass")
        for field in dataclasses.fields(kind):
            given = options.default(field) is not options.REQUIRED
            need(given, f"{kind.__name__}.{field.name} must have a default, for recipes that do not say")
        kind()
    for kind in (task.training_options, task.evaluation_options):
        for field in dataclasses.fields(kind):
            need("help" in field.metadata, f"{kind.__name__}.{field.name} must be made with `option`, for its help")
    counts = task.counts()
    need(
        counts is None or counts in task.baselines().values(),
        f"{subject.name}.counts() must be one of its baselines, so that `compare` can fit it alone, but is {counts!r}",
    )
    found = list(task.columns(task.data_config()))
    need(any(not column.target for column in found), f"{subject.name} must read a column that is not a target")
    settings = {field.name for field in dataclasses.fields(task.data_config)}
    for column in found:
        need(
            column.setting in settings,
            f"column {column.name!r} names the setting {column.setting!r}, which {task.data_config.__name__} lacks",
        )


def refuses_unknown_options(subject: Subject) -> None:
    """An unknown key in any table of a recipe is an error."""
    for table in ("data", "model", "training"):
        recipe = functools.partial(subject.recipe, [f"{table}.nonsense=1"])
        refused(f"{table}.nonsense must be refused as an unknown key", recipe)


def recipe_survives_its_file(subject: Subject) -> None:
    """A recipe reads back from its file as it was."""
    recipe = subject.recipe()
    again = subject.folder / "again.toml"
    again.write_text(recipe.to_toml(), encoding="utf-8")
    with imports.allow(*subject.consent):
        loaded = recipes.load(str(again))
    need(loaded.to_toml() == recipe.to_toml(), "a recipe must read back from its file as it was")


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


def outputs_replace_links(subject: Subject) -> None:
    """A link in a run folder, in place of a file to be written, is replaced, and what it leads to is kept."""
    run, notes = subject.folder / "linked", subject.folder / "notes"
    evaluated = functools.partial(evaluate, run, split="validation", allow_imports=subject.consent)
    shutil.copytree(subject.trained.folder, run)
    if not (run / "evaluation").exists():
        evaluated()
    written = [path for path in (run / "evaluation").rglob("*") if path.is_file()]
    for path in written:
        path.unlink()
        path.symlink_to(notes)
    notes.write_text("mine")
    evaluated()
    need(notes.read_text() == "mine", "an evaluation must not write through links in the run folder")
    for path in written:
        need(path.is_file() and not path.is_symlink(), f"an evaluation must write {path.name} in place of a link")
    shutil.rmtree(run / "evaluation")
    (run / "evaluation").symlink_to(subject.folder)
    refused("an evaluation must refuse to write into a folder that is a link", evaluated)


def one_training_run_at_a_time(subject: Subject) -> None:
    """While one training run is at work in a folder, others are refused and change nothing."""
    run = subject.folder / "held"
    shutil.copytree(subject.trained.folder, run)
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    with locks.lock_folder(run, "one training run"):
        ways: list[dict[str, Any]] = [{"resume": True}, {"overwrite": True}, {"finish": True}]
        for way in ways:
            recipe = subject.recipe(["training.num_train_epochs=3"] if "resume" in way else [])
            again = functools.partial(train, recipe, run=run, progress=False, allow_imports=subject.consent, **way)
            refused(f"a second training run with {next(iter(way))} must be refused", again)
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

    trained = functools.partial(train, recipe, run=run, progress=False, allow_imports=subject.consent)
    try:
        task.make_trainer = make_trainer  # type: ignore[method-assign,assignment]
        refused("a new run must be refused where files have come into its folder", trained)
    finally:
        task.make_trainer = usual  # type: ignore[method-assign]
    need([path.name for path in Path(run).iterdir()] == ["thesis.txt"], "what came into the folder must stay, alone")


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
    taken = subject.trained.planned_steps
    need(steps == taken, f"{taken} steps were trained, but {steps} planned")


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


def answers_over_http(subject: Subject) -> None:
    """A server reads inputs as JSON as files are read; what cannot be read is refused with a sentence."""
    run = subject.run()
    service = Service(run, Limits())
    for bad in (None, 7, {"another": "x"}, {"name": "rows.csv", "bytes": "YQ=="}, {"path": "/etc/passwd"}):
        try:
            found = [one.error for one in predict(run, service.rows([bad]))]
        except UserError:
            continue
        need(all(found), f"{bad!r} must be refused, but is answered")
    if any(isinstance(column, File) and not isinstance(column, Media) for column in service.columns):
        # Files of a kind of their own are read from a disk alone.
        return
    plain = [column.name for column in service.columns]
    rows = [row for row in subject.rows() if row.values.keys() <= {*plain}]
    if not rows:
        # Rows of another form, such as the nodes of a graph.
        return
    names = service.schema.names
    inputs = [{names[name]: _sent(value) for name, value in row.values.items() if value is not None} for row in rows]
    if subject.data.endswith(".jsonl") and service.medium is None:
        lines = Path(subject.data).read_text(encoding="utf-8").splitlines()[: len(rows)]
        sources = {source for column in service.columns for source in service.schema.sources_of(column)}
        inputs = [{name: cell for name, cell in json.loads(line).items() if name in sources} for line in lines]
    read = service.rows(json.loads(json.dumps(inputs)))
    for row, one, other in zip(rows, predict(run, rows), predict(run, read), strict=True):
        same({**other.to_dict(), "where": one.where}, one.to_dict(), row.where)


def _sent(value: Any) -> Any:
    """A value as a client sends it: a file as its bytes."""
    if not isinstance(value, Mapping):
        return value
    content = value["bytes"] if value["path"] is None else Path(value["path"]).read_bytes()
    more = {name: value[name] for name in ("start", "end") if value.get(name) is not None}
    return {"bytes": base64.b64encode(content).decode(), **more}


def other_rows_change_nothing(subject: Subject) -> None:
    """A prediction does not depend on other rows."""
    rows, run = subject.rows(), subject.run()
    for row, together in zip(rows, predict(run, rows), strict=True):
        (alone,) = predict(run, [row])
        same(alone.to_dict(), together.to_dict(), row.where)


def says_what_it_leaves_out(subject: Subject) -> None:
    """A prediction from a part of an example says how many tokens were read; others say nothing of it."""
    run = subject.run()
    whole = list(predict(run, subject.rows()))
    for found in whole:
        untold = found.tokens_read is None and found.tokens_total is None
        need(untold, f"{found.where} is read in full, but its prediction reports truncation")
    if not run.task.cuts_examples or not hasattr(run.recipe.data, "max_length"):
        return
    try:
        data = dataclasses.replace(run.recipe.data, max_length=4)
        short = dataclasses.replace(run, recipe=dataclasses.replace(run.recipe, data=data))
        parts = list(predict(short, subject.rows()))
    except UserError:
        # It refuses to cut documents.
        return
    for complete, part in zip(whole, parts, strict=True):
        if part.error is not None or (part.tokens_read is not None and (part.tokens_total or 0) > part.tokens_read):
            continue
        try:
            same(
                dataclasses.replace(part, tokens_read=None, tokens_total=None).to_dict(), complete.to_dict(), part.where
            )
        except AssertionError:
            need(False, f"{part.where} was cut to 4 tokens, and its prediction does not say so")


#: Cells of a kind that most columns do not have, and what a file or `DataFrame.to_csv` makes of them.
_WRONG_CELLS: tuple[Any, ...] = (
    7.5,
    True,
    math.nan,
    math.inf,
    ["first", "second"],
    [["first"], ["second"]],
    ["first", None],
    {"first": 7},
    "['first', 'second']",
    "['first' 'second']",
    "['first', 'second'",
    "broken \udcff",
)


def wrong_readings_are_said(subject: Subject) -> None:
    """A cell of another kind is read as it stands, or is an error; a column that is missing, or is there twice, is an
    error."""
    task, data = subject.task(), subject.recipe().data
    columns = task.columns(data)
    for column in columns:
        # Others may be missing: what is said is about this one.
        alone = [one if one is column else dataclasses.replace(one, required=False) for one in columns]
        schema = schema_of(alone, data)
        # What annotations add to a column stands in columns of the others, which are tried as theirs.
        sources = [column.source] if isinstance(column, Annotated) else schema.sources_of(column)
        for source, cell in itertools.product(sources, _WRONG_CELLS):
            try:
                row = schema.row({source: cell}, "row 1", subject.folder)
            except UserError:
                continue
            value, listed = row.values.get(column.name), list_in(cell) if isinstance(cell, str) else None
            # A column may be that of a label that applies.
            right = (_leaves(cell), _leaves(listed), [source] if cell is True else None)
            need(
                bool(row.problem) or _leaves(value) in right,
                f"column {source!r}: {cell!r} must be read as it stands, or be an error, but is read as {value!r}",
            )
    _misses_columns(subject, columns)


def _misses_columns(subject: Subject, columns: Sequence[Column]) -> None:
    """Tables without a required column, and those with one twice, are refused in training and prediction."""
    task, recipe, run = subject.task(), subject.recipe(), subject.run()
    inputs, schema = task.inputs(recipe.data), schema_of(columns, recipe.data)

    def predicted(given: Any) -> Any:
        return list(predict(run, task.inputs_in_memory(run, given, recipe.data)))

    def scored(given: Any) -> Any:
        return task.splits(recipe.reading(given).data)

    def read(given: Path) -> Any:
        return list(predict(run, task.inputs_of(run, [given], recipe.data, None)))

    for column in columns:
        for absent in schema.sources_of(column) if column.required and not column.alternative else ():
            table = {source: ["first", "second"] for source in schema.sources if source != absent} | {"another": [1, 2]}
            for verb, does in (("predict", predicted), ("evaluate", scored)):
                if verb == "evaluate" or column in inputs:
                    _refused(f"{verb} on data without the column {absent!r}", does, table)
    file = subject.folder / "twice.csv"
    for source in schema_of(inputs, recipe.data).sources:
        names = [*schema.sources, source]
        file.write_text(f"{','.join(names)}\n{','.join('x' for _ in names)}\n", encoding="utf-8")
        _refused(f"predict on a file with two columns {source!r}", read, file)


def _refused(what: str, does: Callable[[Any], Any], given: Any) -> None:
    """Check that something raises UserError, or that each of the predictions it returns has an error."""
    try:
        found = does(given)
    except UserError:
        return
    need(
        isinstance(found, list) and bool(found) and all(one.error is not None for one in found),
        f"{what} must be an error, but gives {found!r}",
    )


def _leaves(value: Any) -> list[str]:
    """The words, numbers and flags of a value, whatever lists and objects hold them."""
    if isinstance(value, Mapping):
        return [leaf for one in value.values() for leaf in _leaves(one)]
    if isinstance(value, list | tuple):
        return [leaf for one in value for leaf in _leaves(one)]
    if isinstance(value, bool):
        return [str(value).lower()]
    if isinstance(value, int | float):
        return [] if math.isnan(value) else [f"{value:g}"]
    return [] if value is None else str(value).split()
