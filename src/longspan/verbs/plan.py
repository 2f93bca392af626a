"""What a training run would take, before it is started: `plan`."""

import dataclasses
import statistics
import sys
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from longspan.data.batches.encoding import lengths as lengths_of
from longspan.errors import UserError
from longspan.machine import imports, peaks
from longspan.machine.bars import hidden_bars
from longspan.mixers.base import Mixer
from longspan.models.limits import limits
from longspan.results.forecast import Forecast, RunForecast
from longspan.tasks.base.task import Prepared, Recipe, check_validation
from longspan.training.deadline import check_limits
from longspan.verbs.cells import Cell, Cells, cheaper_from, fitting
from longspan.verbs.compare import Changes, planned
from longspan.verbs.trials import CLOCK, ENOUGH_SECONDS, Load, StepCost, covering, fitted

BASELINE = "softmax"
"""The mixer that others are compared with."""

_SHARES = (0.25, 0.5, 1.0)
"""Lengths that are planned by default, as shares of the recipe's."""

_SHORTEST = 16


def plan(
    recipe: Path | str,
    overrides: Sequence[str] = (),
    *,
    mixers: Sequence[str] = (),
    lengths: Sequence[int] = (),
    data: Any = None,
    allow_imports: Iterable[str] = (),
    seconds: float = ENOUGH_SECONDS,
    progress: bool = True,
    **settings: Any,
) -> Forecast:
    """Predict time and memory of training a recipe on this machine, without training it.

    Reads the data and measures a few optimizer steps of each mixer, on batches of the recipe. Longer batches, whose
    steps would take too long to measure, are extrapolated: linearly, and with a quadratic term for mixers whose cost
    grows so. Writes nothing.

    Args:
        recipe: Name or path of a recipe, or a run folder.
        overrides: As for `longspan.recipes.load`.
        mixers: Mixers to plan; "a+b" is a hybrid of the two. By default the recipe's own, and softmax.
        lengths: Values of the key that sets the length: `Task.length_key`. By default the recipe's own, a half and a
            quarter of it; if no row of the data is so long, of the longest row.
        data: A path, or data in memory, as for `longspan.train`; by default, the recipe's.
        allow_imports: Packages or modules that dotted paths may import.
        seconds: For how long a mixer is measured at each length, at least; more than fifteen have no effect.
        progress: Whether to show on standard error what is measured.
        settings: Keys of the recipe by their names, as for `longspan.train`.

    Returns:
        A prediction for each mixer and length: `longspan.results.forecast.Forecast`.

    Raises:
        UserError: An unknown recipe or mixer, no data, lengths of a task that has none, below 1, or longer than a mixer
            reads.
    """
    for what, given in (("mixers", mixers), ("lengths", lengths)):
        if isinstance(given, str):
            raise UserError(f"expected {what} to be a list, got the text {given!r}; write [{given!r}].")
    with imports.allow(*allow_imports), hidden_bars(all_of_them=not progress):
        planner = _Planner(str(recipe), Changes(overrides, settings, data), seconds, progress)
        with planner.peak:
            return planner.forecast(mixers, lengths)


class _Planner:
    """Plans the trainings of one recipe."""

    def __init__(self, recipe: str, changes: Changes, seconds: float, progress: bool) -> None:
        self.name, self.changes, self.progress = recipe, changes, progress
        self.own = changes.applied(recipe)
        self.own.require_data()
        check_limits(self.own.options.max_minutes, self.own.training.get("max_steps", -1))
        table, _, name = self.own.task.length_key.partition(".")
        # A task from elsewhere may lack the usual key.
        there = hasattr(self.own.data if table == "data" else self.own.options, name) if name else False
        self.key = self.own.task.length_key if there else ""
        self.available = peaks.available()
        self.peak = peaks.Peak()
        self.cells = Cells(self.available, self.peak, seconds)

    def forecast(self, names: Sequence[str], lengths: Sequence[int]) -> Forecast:
        """Return what `plan` does."""
        start = CLOCK()
        self._check(lengths)
        wanted = self._recipes(names)
        for name, recipe in wanted.items():
            self._check_limits(name, recipe, lengths)
        self._say("reading the data")
        prepared, at = self._prepared(self.own), self._own_length()
        longest = _longest(prepared)
        cells: list[Cell] = []
        for length in sorted(set(lengths)) if lengths else self._lengths(longest):
            recipes = {name: self._at(recipe, length) for name, recipe in wanted.items()}
            first = next(iter(recipes.values()))
            if length != at:
                del prepared
                prepared, at = self._prepared(first), length
            counted = first.task.counted(first, prepared)
            self.cells.count_preparing()
            for name, recipe in recipes.items():
                self._say(f"measuring {name}" + (f", {self.key}={length}" if self.key else ""))
                before = [point for cell in cells if cell.mixer == name for point in cell.points]
                cells.append(self.cells.cell(name, length, recipe, prepared, counted, before))
        return self._result(wanted, cells, longest, CLOCK() - start)

    def _result(self, wanted: dict[str, Recipe], cells: Sequence[Cell], longest: int, seconds: float) -> Forecast:
        last = {cell.mixer: cell for cell in cells}
        costs = {name: _costs([cell for cell in cells if cell.mixer == name]) for name in wanted}
        return Forecast(
            recipe=self.own.name,
            task=self.own.task.name,
            length_key=self.key,
            longest=longest,
            memory_bytes=self.available,
            device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            runs=[self._run(cell, *costs[cell.mixer]) for cell in cells],
            cheaper_from={
                name: cheaper_from(costs[name][0], costs[BASELINE][0], last[name].recipe)
                for name in wanted
                if name != BASELINE and BASELINE in wanted and self.key
            },
            suggestions=[
                fitting(
                    name, cell.recipe, self.key, cell.length, cell.largest, partial(cell.bytes, costs[name][1]), memory
                )
                for name, cell in last.items()
                if (memory := self.available) is not None
            ],
            seconds=seconds,
        )

    # What is planned

    def _check(self, lengths: Sequence[int]) -> None:
        if lengths and not self.key:
            raise UserError(
                f"expected no lengths for the task {self.own.task.name!r}, which has no key for one, got "
                f"{', '.join(map(str, lengths))}; leave them out."
            )
        for length in lengths:
            if length < 1:
                raise UserError(f"expected lengths of at least 1, got {length}; choose a larger one.")

    def _recipes(self, names: Sequence[str]) -> dict[str, Recipe]:
        """Return the recipe of each mixer, by default of the recipe's own and of the baseline."""
        own = "+".join(dict.fromkeys(self.own.model.get("mixers") or ["additive"]))
        found = {}
        for name in dict.fromkeys(names or (own, BASELINE)):
            try:
                _, _, [(_, _, recipe)] = planned(self.name, [name], 1, self.changes, 0.0)
            except UserError:
                # The model may have options that the baseline does not know.
                if names or name == own:
                    raise
                continue
            found[name] = self.own if name == own else recipe
        return found

    def _check_limits(self, name: str, recipe: Recipe, lengths: Sequence[int]) -> None:
        if self.key not in ("data.max_length", "training.segment_length"):
            # Others do not count the positions of a row.
            return
        for limit in limits(recipe.task.without_values(recipe.model)) if lengths else ():
            if max(lengths) > limit.tokens:
                raise UserError(
                    f"expected lengths of at most {limit.tokens} for {limit.part}, got {max(lengths)} with {name}; "
                    f"lower it, or set {limit.key}={max(lengths)}."
                )

    def _own_length(self) -> int | None:
        table, _, name = self.key.partition(".")
        return int(getattr(self.own.data if table == "data" else self.own.options, name)) if self.key else None

    def _lengths(self, longest: int) -> list[int | None]:
        own = self._own_length()
        if own is None:
            return [None]
        # What the data do not contain tells nothing; the others do not count positions, or cut.
        most = min(own or longest, longest) if self.key == "data.max_length" else own or longest
        lengths = [max(min(most, _SHORTEST), int(share * most)) for share in _SHARES]
        return [own if length == most else length for length in dict.fromkeys(lengths)]

    def _at(self, recipe: Recipe, length: int | None) -> Recipe:
        if length is None:
            return recipe
        table, _, name = self.key.partition(".")
        part = "data" if table == "data" else "options"
        return dataclasses.replace(recipe, **{part: dataclasses.replace(getattr(recipe, part), **{name: length})})

    # What is measured

    def _prepared(self, recipe: Recipe) -> Prepared:
        peaks.release()
        recipe.task.processor.check(recipe.model, recipe.data)
        prepared = recipe.task.prepare(recipe)
        check_validation(prepared.splits)
        return prepared

    # What is predicted

    def _run(self, cell: Cell, seconds: StepCost, extra: StepCost) -> RunForecast:
        if cell.points:
            # What was measured at this length counts more than the line through all lengths.
            ratios = [point.seconds / seconds(point.load.times(cell.accumulated)) for point in cell.points]
            seconds = seconds.scaled(statistics.median(ratios))
        positions = sum(load.positions for load in cell.loads)
        per_epoch = cell.schedule.steps_per_epoch
        epoch = seconds(Load(positions, sum(load.pairs for load in cell.loads))) + seconds.fixed * (per_epoch - 1)
        # Forward alone takes about a third of a step.
        rows = sum(load.positions / load.length for load in cell.loads)
        validation = epoch * cell.validation_rows / rows / 3 if cell.validation is None else cell.validation
        took = partial(cell.schedule.seconds, epoch / per_epoch, validation)
        steps, minutes = cell.steps, cell.recipe.options.max_minutes
        if minutes:
            steps = max(1, bisect_right(range(1, steps + 1), 60 * minutes, key=took))
        needed = round(cell.bytes(extra, cell.largest))
        return RunForecast(
            mixer=cell.mixer,
            length=cell.length,
            positions=round(max(load.length for load in cell.loads)),
            seconds_per_step=epoch / per_epoch,
            tokens_per_second=cell.real_share * positions / epoch,
            peak_memory_bytes=needed,
            fits=None if self.available is None else needed <= self.available,
            steps=steps,
            epochs=round(steps / per_epoch, 3),
            seconds=took(steps),
            validations=cell.schedule.validations(steps),
            seconds_per_validation=validation,
            measured=any(point.load.pairs >= cell.largest.pairs for point in cell.points),
        )

    def _say(self, what: str) -> None:
        if self.progress:
            print(f"longspan: {what}", file=sys.stderr, flush=True)


def _longest(prepared: Prepared) -> int:
    """Return the length of the longest training example; 1 where they have none."""
    training = prepared.splits["train"]
    return int(np.max(lengths_of(training))) if "length" in training.column_names else 1


def _costs(cells: Sequence[Cell]) -> tuple[StepCost, StepCost]:
    """Return the seconds of steps and the memory of batches of one mixer, by all that was measured."""
    points = [(cell, point) for cell in cells for point in cell.points]
    recipe = cells[0].recipe
    modules = recipe.task.without_values(recipe.model).modules()
    quadratic = any(not module.linear for module in modules if isinstance(module, Mixer))
    steps = [point.load.times(cell.accumulated) for cell, point in points]
    seconds = fitted(steps, [point.seconds for _, point in points], quadratic)
    batches = [point.load for _, point in points]
    return seconds, covering(batches, [max(1.0, point.extra_bytes) for _, point in points], quadratic)
