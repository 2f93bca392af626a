"""Train several mixers on one recipe, several seeds each, and compare quality with cost: `compare`.

Baselines are fitted to the same splits, also in a process of their own, with mixers or without any.
"""

import dataclasses
import functools
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from longspan import mixers, recipes
from longspan.errors import UserError
from longspan.machine import imports, locks
from longspan.machine.printing import note
from longspan.models.backbone import known_to
from longspan.recipes.keys import placed
from longspan.report import SPLITS, duration, pictures
from longspan.report.comparison import comparison_summary
from longspan.report.parts import conclusion
from longspan.report.run_report import NAME as REPORT
from longspan.results import ComparedBaseline, ComparedRun, Comparison, MixerSummary, Spread
from longspan.results.outputs import folder_in, write_json, write_text
from longspan.results.parts import Parts, mean_of
from longspan.results.scores import Scores
from longspan.tasks.base.task import Baseline, Recipe, Task
from longspan.training.deadline import check_limits
from longspan.verbs import fitting, report_contents
from longspan.verbs.jobs import Launcher
from longspan.verbs.preparing import bytes_to_sample, prepare_run

R = TypeVar("R", ComparedRun, ComparedBaseline)

_COSTS = {"peak_memory_bytes", "parameters", "seconds"}
"""What the metrics.json of runs and of baselines say besides scores."""

_PARTS = {"validation": "parts", "test": "test_parts"}
"""What the metrics.json of runs calls the scores of a model's parts, by split."""

_ANY_EPOCHS = 1_000_000
"""As good as no limit, where equal time is wanted."""

BUDGET = "budget.json"
"""Name of the file of a comparison with the minutes and the data of its runs."""


def compare(
    recipe: Path | str,
    mixers: Sequence[str] = (),
    seeds: int = 3,
    overrides: Sequence[str] = (),
    run: Path | str | None = None,
    *,
    data: Any = None,
    baselines: Sequence[str] = (),
    minutes: float = 0.0,
    jobs: int = 1,
    submit: str = "",
    allow_imports: Iterable[str] = (),
    **settings: Any,
) -> Comparison:
    """Train each mixer with seeds 0 to `seeds - 1`, each in a process of its own, and summarise the runs.

    Each run has its own process, so that its peak memory can be measured. Finished runs are kept and unfinished ones
    continue from their checkpoint, so that calling this again completes what was interrupted.

    Args:
        recipe: Name or path of a recipe.
        mixers: Mixers, each put in place of the recipe's own; "a+b" is a hybrid of the two. None, for baselines alone.
        seeds: Runs of each mixer.
        overrides: As for `longspan.recipes.load`.
        run: Where the runs, as MIXER-SEED, their recipes and the results go; default `runs/compare-RECIPE`.
        data: A path, or data in memory, as for `longspan.train`; by default, the recipe's.
        baselines: Training-free baselines to add: names of the task's baselines (`Task.baselines`), such as "tfidf" and
            "nb" for documents with one class, "ngram" for language models. For a model of sentence embeddings,
            "embeddings:MODEL" with its name or folder. Each is fitted once, to the same splits; settings of model and
            training do not matter to it.
        minutes: Minutes for all trainings, of which each has the same share as its `training.max_minutes`, instead of
            a number of epochs or steps. Only `training.num_train_epochs` among `overrides` still is a limit. Baselines
            that are not trained, and starting processes, come on top. With more mixers or seeds than before, each new
            one has the share of the others. 0 is no deadline.
        jobs: Processes at once, each with its share of the cores; what they print goes to RUN.log. The minutes are then
            shared by rounds of so many trainings. Peak memory is that of each; all must fit together.
        submit: Command of a scheduler, such as "sbatch --requeue", which gets the path of a script for each run: see
            `longspan.verbs.jobs.Launcher`. Each training has all minutes.
        allow_imports: Packages or modules that dotted paths may import.
        settings: Keys of the recipe by their names, as for `longspan.train`.

    Returns:
        The runs, those that failed with their errors, and a summary by mixer: also written to `comparison.json`,
        `comparison.md`, `report.html` and, with mixers, `comparison.png`.

    Raises:
        UserError: An unknown mixer, baseline or recipe, or a missing package or model that a baseline needs, before any
            training starts. Also a folder that holds a run of another recipe, and no run that succeeded.
    """
    for what, names in (("mixers", mixers), ("baselines", baselines)):
        if isinstance(names, str):
            raise UserError(f"expected {what} to be several names, got the text {names!r}; write [{names!r}].")
    with imports.allow(*allow_imports):
        changed = Changes(overrides, settings, data)
        launcher = Launcher(jobs, submit)
        result = compared(
            str(recipe), _once(mixers), _once(baselines), seeds, changed, run, minutes, shared=True, launcher=launcher
        )
    errors = [one.error for one in result.runs or result.baselines]
    if None not in errors:
        raise UserError(f"none of the {len(errors)} runs succeeded; the first ended with: {errors[0]}")
    return result


@dataclasses.dataclass(frozen=True)
class Changes:
    """Changes to the recipe."""

    overrides: Sequence[str]
    settings: Mapping[str, Any]
    data: Any

    def applied(self, recipe: str, before: Sequence[str] = ()) -> Recipe:
        """Return the recipe with these changes, after those of `before`."""
        changed = recipes.load(recipe, [*before, *self.overrides], settings=self.settings)
        if self.data is None:
            return changed
        recipes.check_one_source(self.overrides, self.settings)
        return changed.reading(self.data)

    def as_overrides(self, recipe: str, task: Task) -> list[str]:
        """Return them as overrides, but for the data."""
        return [*self.overrides, *(f"{key}={value}" for key, value in placed(self.settings, task, recipe).items())]


def _once(names: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(names))


def compared(
    recipe: str,
    names: Sequence[str],
    others: Sequence[str],
    seeds: int,
    changes: Changes,
    run: Path | str | None,
    minutes: float,
    *,
    shared: bool = False,
    launcher: Launcher | None = None,
) -> Comparison:
    """Do what `compare` does, and return the result also if no run succeeded.

    The minutes are those of each training, or `shared` by all.
    """
    if not names and not others:
        raise UserError("expected at least one mixer or one baseline, got neither; name some.")
    if seeds < 1:
        raise UserError(f"expected at least one seed, got {seeds}; choose a larger number.")
    task, name = (loaded := recipes.load(recipe)).task, loaded.name
    kinds = {name: fitting.find(task, name) for name in others}
    trainings = len(names) * seeds + sum(kind.trains for kind in kinds.values())
    folder = Path(run or Path("runs", f"compare-{name}"))
    launcher = launcher or Launcher()
    budget = _Budget.of(folder, minutes, max(1, trainings), shared, launcher)
    base, overrides, plan = planned(recipe, names, seeds, changes, budget.minutes_each())
    base.require_data()
    base.task.check_packages()
    folder.mkdir(parents=True, exist_ok=True)
    with locks.lock_folder(folder, "one comparison"):
        if budget.sample is None:
            budget = dataclasses.replace(budget, sample=_sample([one for *_, one in plan]))
        if budget.sample:
            base = base.sampled(budget.sample)
            plan = [(name, seed, one.sampled(budget.sample)) for name, seed, one in plan]
        return _compared_in(folder, recipe, base, plan, kinds, overrides, budget, launcher)


@dataclasses.dataclass(frozen=True)
class _Budget:
    """Time and data of each training of a comparison, which later calls in its folder keep.

    Attributes:
        minutes: Minutes of all trainings, or of each.
        trainings: Number of trainings that share them, one after the other, or 1.
        sample: Share of the rows that all read; 0 for all rows, None before it is known.
    """

    minutes: float
    trainings: int
    sample: float | None = None

    @classmethod
    def of(cls, folder: Path, minutes: float, trainings: int, shared: bool, launcher: Launcher) -> "_Budget":
        """Budget of the comparison in a folder, or a new one where it had other minutes."""
        turns = 1 if launcher.submit else -(-trainings // launcher.jobs)
        wanted = cls(minutes, turns if shared else 1)
        before = cls.load(folder)
        found = wanted if before is None or before.minutes != minutes else before
        if shared and minutes:
            told = f"each of {trainings} trainings has {duration(60 * found.minutes_each())}"
            if found.trainings != wanted.trainings:
                total = duration(60 * found.minutes_each() * turns)
                told += f", as in {str(folder)!r} before, so that all take {total} instead of {minutes:g} min"
            note(told)
        return found

    @classmethod
    def load(cls, folder: Path) -> "_Budget | None":
        """Budget of the comparison in a folder; None where there is none."""
        file = folder / BUDGET
        try:
            found = cls(**json.loads(file.read_text(encoding="utf-8"))) if file.exists() else None
            if found and not (found.trainings >= 1 and found.minutes >= 0):
                raise ValueError("numbers are out of range")
            return found
        except (OSError, ValueError, TypeError) as error:
            raise UserError(
                f"expected minutes, trainings and sample in {str(file)!r}, got a damaged file; delete it, and give "
                "--minutes as before."
            ) from error

    def minutes_each(self) -> float:
        """Minutes of each training."""
        return self.minutes / self.trainings

    def write(self, folder: Path) -> None:
        write_json(folder / BUDGET, dataclasses.asdict(self))


def _sample(plan: Sequence[Recipe]) -> float:
    """Share of the rows that can be prepared in time, the same for all runs; 0 for all rows."""
    if not plan or not bytes_to_sample(plan[0]):
        return 0.0
    return prepare_run(plan[0], plan[0].training["seed"], time.monotonic, time.monotonic()).recipe.data.sample or 1.0


def planned(
    recipe: str, names: Sequence[str], seeds: int, changes: Changes, minutes: float
) -> tuple[Recipe, list[str], list[tuple[str, int, Recipe]]]:
    """Return the recipe with its changes, these as overrides, and the recipe of each run after its mixer and seed.

    Raises:
        UserError: An unknown mixer, or settings that fit no model.
    """
    for name in names:
        for mixer in name.split("+"):
            mixers.load(mixer)
    base = _base(recipe, names, changes)
    overrides = changes.as_overrides(recipe, base.task)
    if minutes:
        base = _with_budget(base, minutes, overrides)
    check_limits(base.options.max_minutes, base.training.get("max_steps", -1))
    plan = [(name, seed, _recipe(base, name, seed)) for seed in range(seeds) for name in names]
    for *_, wanted in plan:
        wanted.task.without_values(wanted.model)
    return base, overrides, plan


def _compared_in(
    folder: Path,
    recipe: str,
    base: Recipe,
    plan: Sequence[tuple[str, int, Recipe]],
    kinds: Mapping[str, Baseline],
    overrides: Sequence[str],
    budget: _Budget,
    launcher: Launcher,
) -> Comparison:
    """Fit the baselines `kinds` and train the runs of `plan` in a folder that nobody else writes to."""
    kind, total = base.task.scores, len(kinds) + len(plan)
    places = {name: folder / fitting.folder_name(name, found) for name, found in kinds.items()}
    needs = {name: fitting.recipe_of(base, trains=found.trains) for name, found in kinds.items()}
    for name, place in places.items():
        _check_settings(place, needs[name])
    for name, seed, wanted in plan:
        run_dir = folder / f"{name}-{seed}"
        _check_settings(run_dir, wanted)
    budget.write(folder)

    def finished(number: int, run_dir: Path, start: Callable[[], str | None]) -> str | None:
        """Error of a run or a baseline, which is started unless it is finished; None without one."""
        done = (run_dir / "recipe.toml").exists() and (run_dir / "metrics.json").exists()
        print(f"[{number}/{total}] {run_dir}{': finished before' if done else ''}", file=sys.stderr)
        if not done:
            return start()
        launcher.forget(run_dir)
        return None

    def fitted(number: int, name: str) -> ComparedBaseline:
        error = finished(number, places[name], lambda: _fit(name, needs[name], places[name], launcher))
        return _outcome(ComparedBaseline(name, kinds[name].summary(), str(places[name]), error), kind)

    def trained(number: int, name: str, seed: int, wanted: Recipe) -> ComparedRun:
        run_dir = folder / f"{name}-{seed}"
        # Of a comparison that was killed, one may be saving its checkpoint. Jobs of a scheduler hold theirs for hours.
        if not launcher.submit:
            locks.wait_until_free(run_dir, "a training run", launcher.is_stopped)
        error = finished(number, run_dir, lambda: _train(wanted, run_dir, launcher))
        return _outcome(ComparedRun(name, seed, str(run_dir), error), kind)

    works: list[Callable[[], ComparedBaseline | ComparedRun]] = [
        functools.partial(fitted, number, name) for number, name in enumerate(kinds, 1)
    ]
    works += [functools.partial(trained, number, *each) for number, each in enumerate(plan, 1 + len(kinds))]
    results = launcher.run_all(works)
    counted, runs = results[: len(kinds)], results[len(kinds) :]
    names = dict.fromkeys(name for name, *_ in plan)
    summary = [found for name in names if (found := _summary(name, runs))]
    result = Comparison(recipe, base.task.name, kind, list(overrides), str(folder), runs, summary, counted)
    result = dataclasses.replace(result, conclusion=conclusion(result))
    write_json(folder / "comparison.json", result.to_dict())
    what = "Mixers" if plan else "Baselines"
    text = f"# {what} compared on {base.name}\n\n{comparison_summary(result, 'github')}\n"
    write_text(folder / "comparison.md", text)
    if summary:
        pictures.comparison(result, folder / "comparison.png")
    report_contents.comparison_report(folder).save(folder / REPORT)
    return result


def _base(recipe: str, names: Sequence[str], changes: Changes) -> Recipe:
    """Return the recipe with all options that it or the overrides hold for any of the compared mixers."""
    if not names:
        return changes.applied(recipe)
    own = recipes.load(recipe).model.get("mixers", ["additive"])
    used = dict.fromkeys([*own, *(mixer for name in names for mixer in name.split("+"))])
    return changes.applied(recipe, [f"model.mixers={json.dumps(list(used))}"])


def _with_budget(base: Recipe, minutes: float, overrides: Sequence[str]) -> Recipe:
    """Return the recipe with a time budget in place of the epochs or steps that it has of itself."""
    given = {override.partition("=")[0].strip() for override in overrides}
    if "training.max_minutes" in given:
        raise UserError(
            f"expected a time budget once, got training.max_minutes and minutes={minutes:g}; leave one of them out."
        )
    own = {} if "training.max_steps" in given else {"max_steps": -1}
    own |= {} if "training.num_train_epochs" in given else {"num_train_epochs": _ANY_EPOCHS}
    options = dataclasses.replace(base.options, max_minutes=float(minutes))
    return dataclasses.replace(base, training={**base.training, **own}, options=options)


def _recipe(base: Recipe, name: str, seed: int) -> Recipe:
    """Return the recipe of one run; a model refuses options for mixers that it does not have, and those of WANTED that
    none of them knows."""
    used = name.split("+")
    options = {mixer: values for mixer, values in base.model.get("mixer_options", {}).items() if mixer in used}
    model = {**base.model, "mixers": used, "mixer_options": options}
    return dataclasses.replace(base, model=known_to(used, model), training={**base.training, "seed": seed})


def _check_settings(run_dir: Path, wanted: Recipe) -> None:
    """Raise UserError if `run_dir` holds a run of another recipe, which is never overwritten."""
    if (run_dir / "recipe.toml").exists() and recipes.load(str(run_dir / "recipe.toml")).to_toml() != wanted.to_toml():
        raise UserError(
            f"expected a run with this comparison's settings in {str(run_dir)!r}, got one with other settings; "
            "move or delete it, or name another folder with --run."
        )


def _fit(name: str, wanted: Recipe, folder: Path, launcher: Launcher) -> str | None:
    """Fit a baseline in a separate process; return None, or the error that ended it."""
    folder_in(folder.parent, folder.name)
    file = folder / "recipe.toml"
    write_text(file, wanted.to_toml())
    return launcher.run(folder, "longspan.verbs.fitting", str(file), name, *imports.consent_flags())


def _train(wanted: Recipe, run_dir: Path, launcher: Launcher) -> str | None:
    """Train in a separate process; return None, or the error that ended it."""
    file = run_dir.with_name(f"{run_dir.name}.toml")
    write_text(file, wanted.to_toml())
    flags = ["--run", str(run_dir), "--json", *imports.consent_flags()]
    return launcher.run(run_dir, "longspan", "train", str(file), *flags, resume=["--resume"])


def _outcome(run: R, kind: type[Scores]) -> R:
    """Return a run or a baseline with the contents of its metrics.json, or with the error that these are missing."""
    if run.error is not None:
        return run
    try:
        metrics, scores = _metrics(Path(run.folder), kind)
        parts = {split: Parts.from_dict(metrics[name]) for split, name in _PARTS.items() if name in metrics}
    except UserError as damage:
        return dataclasses.replace(run, error=str(damage))
    own = {name: metrics[name] for name in (*_COSTS, "steps", "tokens_per_second", "chosen") if hasattr(run, name)}
    own |= {"parts": parts} if isinstance(run, ComparedRun) else {}
    return dataclasses.replace(run, scores=scores, **own)


def _metrics(folder: Path, kind: type[Scores]) -> tuple[dict[str, Any], dict[str, Scores]]:
    """Contents of a metrics.json, and the scores of each split in it.

    Raises:
        UserError: It is missing or damaged.
    """
    path = folder / "metrics.json"
    try:
        metrics = json.loads(path.read_text(encoding="utf-8"))
        scores = {split: kind.from_dict(metrics[split]) for split in SPLITS if metrics.get(split)}
        if not scores or not metrics.keys() >= _COSTS:
            raise ValueError("fields are missing")
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise UserError(
            f"expected scores and costs in {str(path)!r}, got a missing or damaged file ({error}); delete its folder "
            "and compare again."
        ) from error
    return metrics, scores


def _summary(name: str, runs: Sequence[ComparedRun]) -> MixerSummary | None:
    done = [run for run in runs if run.mixer == name and run.error is None]
    if not done:
        return None
    scores = {
        split: {
            score: _mean_and_spread([run.scores[split].numbers()[score] for run in done])
            for score in done[0].scores[split].shown()
        }
        for split in SPLITS
        if all(split in run.scores for run in done)
    }
    return MixerSummary(
        mixer=name,
        scores=scores,
        steps=_mean_and_spread([run.steps for run in done]),
        seconds=_mean_and_spread([run.seconds for run in done]),
        tokens_per_second=_mean_and_spread([run.tokens_per_second for run in done]),
        peak_memory_bytes=max(run.peak_memory_bytes for run in done),
        parameters=done[0].parameters,
        seeds=len(done),
        parts={
            split: mean_of([run.parts[split] for run in done])
            for split in SPLITS
            if all(split in run.parts for run in done)
        },
    )


def _mean_and_spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)
