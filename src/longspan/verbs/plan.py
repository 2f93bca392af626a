"""Costs of a training run, before it is started: `plan`.

Ten steps of a mixer at a length, or more if they are fast, on batches of the recipe from the cheapest to the dearest. A
load is `(1, positions, pairs)`: rows of a batch times their padded length, and times its square. A cost is its product
with `(fixed, each, pair)`; `pair` is 0 where all mixers are linear.
"""

import contextlib
import itertools
import math
import sys
import tempfile
import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback, ProgressCallback
from transformers.trainer_utils import IntervalStrategy, SaveStrategy

from longspan.data.batches.encoding import lengths as lengths_of
from longspan.errors import UserError
from longspan.machine import imports, memory
from longspan.machine.bars import hidden_bars
from longspan.mixers.base import Mixer
from longspan.models.limits import limits
from longspan.results.forecast import Forecast, RunForecast, Suggestion
from longspan.tasks.base.task import Counted, Prepared, Recipe, check_validation
from longspan.training.base import LongspanTrainer
from longspan.training.callbacks import ReturnFreedMemory
from longspan.training.deadline import SAVED_BYTES_PER_SECOND, check_limits, scoring_seconds
from longspan.training.lengths import Loader
from longspan.verbs import starting
from longspan.verbs.compare import Changes, planned
from longspan.verbs.preparing import build_model
from longspan.verbs.run_folders import RunFolder, arguments_of

BASELINE = "softmax"
"""The mixer that others are compared with."""

_SHARES, _SHORTEST = (0.25, 0.5, 1.0), 16
"""Lengths that are planned by default, as shares of the recipe's, and the shortest one."""

ENOUGH_SECONDS, MOST_SECONDS = 2.0, 15.0
"""Steps are measured for so many seconds at each length, and a batch that would take most of the last is not."""

MARGIN, _USABLE = 1.15, 0.8
"""Predicted memory is the measured one times the first: between two returns of freed memory to the system, batches of
changing shapes leave holes. Measuring may take the second, as a share."""

_SCORING_BUDGET = 40.0
"""With a time budget of so many seconds, validations are measured for a few tenths of a second: less where steps are
measured for less than `ENOUGH_SECONDS`."""

_ROWS = "per_device_train_batch_size"


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
    for what, names in (("mixers", mixers), ("lengths", lengths)):
        if isinstance(names, str):
            raise UserError(f"expected {what} to be a list, got the text {names!r}; write [{names!r}].")
    with imports.allow(*allow_imports), hidden_bars(all_of_them=not progress):
        planner = _Planner(str(recipe), Changes(overrides, settings, data), seconds, progress)
        with planner.peak:
            return planner.forecast(mixers, lengths)


def fitted(loads: np.ndarray, costs: np.ndarray, quadratic: bool) -> np.ndarray:
    """Weights `(3,)` of costs `(n,)` of loads `(n, 3)`: none below 0, with the smallest squared relative errors."""
    # In units of their largest value, so that all three are of one size.
    units = loads.max(0)
    scaled = loads / units / np.maximum(costs, 1e-12)[:, None]
    terms = (0, 1, 2) if quadratic else (0, 1)
    # With as many points as terms all fit, so few points have few terms; the cost of one load grows with what is read.
    most = min(len(np.unique(loads, axis=0)), len(terms))
    choices = [each for number in range(1, most + 1) for each in itertools.combinations(terms, number)]
    best, least = np.zeros(3), math.inf
    # The best solution without negative numbers is that of the terms which are above 0 in it.
    for chosen in choices if most > 1 else [terms[-1:]]:
        weights = np.linalg.lstsq(scaled[:, chosen], np.ones(len(scaled)), rcond=None)[0]
        error = float(np.square(scaled[:, chosen] @ weights - 1).sum())
        if (weights >= 0).all() and error < least - 1e-12:
            best, least = np.zeros(3), error
            best[list(chosen)] = weights
    return best / units


def covering(loads: np.ndarray, costs: np.ndarray, quadratic: bool) -> np.ndarray:
    """Weights as `fitted`, raised until no cost is above them."""
    weights = fitted(loads, costs, quadratic)
    return weights * max(1.0, (costs / np.maximum(loads @ weights, 1e-12)).max())


class Watch(TrainerCallback):
    """Measures steps on batches from the cheapest to the dearest, each twice, then in turns until that is enough.

    Args:
        loads: Load of each batch, `(n, 3)`.
        allows: Whether to try a load, given the measured batches so far.
        peak: Measures memory.
        enough: Seconds of all steps together, at least, unless they are `MOST_SECONDS`.
        clock: Seconds from any origin.
    """

    def __init__(
        self,
        loads: np.ndarray,
        allows: Callable[[np.ndarray, np.ndarray], bool],
        peak: memory.Peak,
        enough: float,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self.loads, self.allows, self.peak, self.enough, self.clock = loads, allows, peak, enough, clock
        self.order = [*np.repeat(np.arange(len(loads)), 2).tolist(), *(list(range(len(loads))) * 50)]
        self.seconds: list[float] = []
        self.bytes: list[int] = []
        self._last, self._base = 0.0, memory.resident()

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        self.peak.mark()
        self._last = self.clock()

    def on_step_end(self, args: Any, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()
        self.seconds.append(self.clock() - self._last)
        self.bytes.append(max(1, self.peak.most() - self._base))
        number, odd = divmod(len(self.seconds), 2)
        if number < len(self.loads):
            control.should_training_stop = not odd and not self.allows(self.steps(), self.loads[number])
        else:
            ends = len(self.seconds) % len(self.loads) == 0
            control.should_training_stop = sum(self.seconds) >= min(MOST_SECONDS, self.enough if ends else math.inf)
        self.on_train_begin()

    def steps(self) -> np.ndarray:
        """Load, seconds and additional bytes of each batch that was read twice, `(m, 5)`."""
        order, rows = np.array(self.order[: len(self.seconds)]), []
        for number, load in enumerate(self.loads):
            # The first time compiles, allocates and fills caches. Then the mean, as of a training run; what waits for
            # something else counts twice at most.
            later = np.array(self.seconds)[order == number][1:]
            if len(later):
                most = np.array(self.bytes)[order == number].max()
                rows.append([*load, np.minimum(later, 2 * np.median(later)).mean(), most])
        return np.array(rows).reshape(-1, 5)


class _Planner:
    """Plans the training runs of one recipe."""

    def __init__(self, recipe: str, changes: Changes, seconds: float, progress: bool) -> None:
        self.name, self.changes, self.enough, self.progress = recipe, changes, seconds, progress
        self.own = changes.applied(recipe)
        self.own.require_data()
        if getattr(self.own.data, "streaming", False):
            raise UserError(
                "expected data that are stored to plan, got data.streaming=true; leave it out, and set data.sample for "
                "a share of the rows."
            )
        check_limits(self.own.options.max_minutes, self.own.training.get("max_steps", -1))
        table, _, self._setting = self.own.task.length_key.partition(".")
        self._table = "data" if table == "data" else "options"
        # A task from elsewhere may lack the usual key.
        self.key = self.own.task.length_key if hasattr(getattr(self.own, self._table), self._setting or " ") else ""
        self.own_length = int(getattr(getattr(self.own, self._table), self._setting)) if self.key else None
        self.memory, self.peak = memory.available(), memory.Peak()
        # The most in use while nothing was trained.
        self.other_bytes = 0
        # By mixer: load, seconds and additional bytes of measured batches, `(m, 5)`, and weights of a step's seconds.
        self.steps: dict[str, np.ndarray] = {}
        self.seconds: dict[str, np.ndarray] = {}

    def forecast(self, names: Sequence[str], lengths: Sequence[int]) -> Forecast:
        """Measure all mixers at all lengths, from the shortest on."""
        start = time.perf_counter()
        wanted = self._recipes(names)
        self._check(wanted, lengths)
        self._show_progress("reading the data")
        prepared, at = self._prepared(self.own), self.own_length
        longest = _longest(prepared)
        runs: list[RunForecast] = []
        suggestions: dict[str, Suggestion] = {}
        for length in sorted(set(lengths)) if lengths else self._lengths(longest):
            recipes = {name: self._at(recipe, length) for name, recipe in wanted.items()}
            first = next(iter(recipes.values()))
            if length != at:
                del prepared
                prepared, at = self._prepared(first), length
            counted = first.task.counted(first, prepared)
            for name, recipe in recipes.items():
                self._show_progress(f"measuring {name}" + (f", {self.key}={length}" if self.key else ""))
                run, largest, bytes_of = self._run(name, length, recipe, prepared, counted)
                runs.append(run)
                if self.memory is not None:
                    suggestions[name] = fitting(name, recipe, self.key, length, largest, bytes_of, self.memory)
        others = [name for name in wanted if name != BASELINE and BASELINE in wanted and self.key]
        return Forecast(
            recipe=self.own.name,
            task=self.own.task.name,
            length_key=self.key,
            longest=longest,
            memory_bytes=self.memory,
            device=torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
            runs=runs,
            cheaper_from={
                name: cheaper_from(self.seconds[name], self.seconds[BASELINE], wanted[name]) for name in others
            },
            suggestions=list(suggestions.values()),
            seconds=time.perf_counter() - start,
        )

    def _recipes(self, names: Sequence[str]) -> dict[str, Recipe]:
        """Recipe of each mixer, by default of the recipe's own and of the baseline."""
        own = "+".join(dict.fromkeys(self.own.model.get("mixers") or ["additive"]))
        recipes = {}
        for name in dict.fromkeys(names or (own, BASELINE)):
            try:
                _, _, [(_, _, recipe)] = planned(self.name, [name], 1, self.changes, 0.0)
            except UserError:
                # The model may have options that the baseline does not know.
                if names or name == own:
                    raise
                continue
            recipes[name] = self.own if name == own else recipe
        return recipes

    def _check(self, wanted: Mapping[str, Recipe], lengths: Sequence[int]) -> None:
        if lengths and not self.key:
            raise UserError(
                f"expected no lengths for the task {self.own.task.name!r}, which has no key for one, got "
                f"{', '.join(map(str, lengths))}; leave them out."
            )
        if min(lengths, default=1) < 1:
            raise UserError(f"expected lengths of at least 1, got {min(lengths)}; choose a larger one.")
        # Other keys do not count the positions of a row.
        for name, recipe in wanted.items() if self.key in ("data.max_length", "training.segment_length") else ():
            for limit in limits(recipe.task.without_values(recipe.model)):
                if max(lengths, default=0) > limit.tokens:
                    raise UserError(
                        f"expected lengths of at most {limit.tokens} for {limit.part}, got {max(lengths)} with {name}; "
                        f"lower it, or set {limit.key}={max(lengths)}."
                    )

    def _lengths(self, longest: int) -> list[int | None]:
        own = self.own_length
        if own is None:
            return [None]
        # What the data do not contain tells nothing; the others do not count positions, or cut.
        most = min(own or longest, longest) if self.key == "data.max_length" else own or longest
        lengths = [max(min(most, _SHORTEST), int(share * most)) for share in _SHARES]
        return [own if length == most else length for length in dict.fromkeys(lengths)]

    def _at(self, recipe: Recipe, length: int | None) -> Recipe:
        part = getattr(recipe, self._table)
        part = part if length is None else replace(part, **{self._setting: length})
        return replace(recipe, **{self._table: part})

    def _prepared(self, recipe: Recipe) -> Prepared:
        memory.release()
        recipe.task.processor.check(recipe.model, recipe.data)
        prepared = recipe.task.prepare(recipe)
        check_validation(prepared.splits)
        return prepared

    def _run(
        self, name: str, length: int | None, recipe: Recipe, prepared: Prepared, counted: Counted | None
    ) -> tuple[RunForecast, np.ndarray, Callable[[np.ndarray], float]]:
        """Forecast of a mixer at a length, the load of the largest batch, and the memory of a load."""
        known = self.steps.get(name, np.zeros((0, 5)))
        if not len(known) and recipe.training[_ROWS] > 1:
            # No batch is tried of which nothing is known.
            with self._trainer(_single_rows(recipe), prepared, counted) as (trainer, _):
                known = self._measured(trainer, known)
        with self._trainer(recipe, prepared, counted) as (trainer, arguments):
            loads, base = _loads(trainer), memory.resident()
            own = self._measured(trainer, known)
            each, epochs = arguments.gradient_accumulation_steps, trainer.args.num_train_epochs
            real, scored = 1 - trainer.padding_fraction(), len(trainer.eval_dataset)
            saved = 3 * sum(one.numel() * one.element_size() for one in trainer.model.parameters())
            validates = arguments.eval_strategy != IntervalStrategy.NO
            if validates and len(own):
                budget = _SCORING_BUDGET * min(1.0, self.enough / ENOUGH_SECONDS)
                validation = scoring_seconds(trainer, trainer.rehearse, budget, time.perf_counter)
        # Batches of one row count only until there are others.
        known = np.concatenate([self.steps.get(name, own[:0]), own]) if len(own) else known
        self.steps[name] = known
        modules = recipe.task.without_values(recipe.model).modules()
        quadratic = any(not module.linear for module in modules if isinstance(module, Mixer))
        step = np.array([1, each, each])
        self.seconds[name] = seconds = fitted(known[:, :3] * step, known[:, 3], quadratic)
        memory_cost = covering(known[:, :3], known[:, 4], quadratic)
        if len(own):
            # What was measured at this length counts more than the line through all lengths.
            seconds = seconds * np.median(own[:, 3] / (own[:, :3] * step @ seconds))
        _, positions, pairs = loads.sum(0)
        largest, per_epoch = loads.max(0), -(-len(loads) // each)
        epoch = float(seconds @ [per_epoch, positions, pairs])
        if not validates or not len(own):
            # Forward alone takes about a third of a step.
            validation = validates * epoch * scored / (loads[:, 1] ** 2 / loads[:, 2]).sum() / 3
        times = partial(_times, arguments, per_epoch, bool(recipe.options.average_last))

        def took(steps: int) -> float:
            saving = times("save", steps) * saved / SAVED_BYTES_PER_SECOND
            return epoch / per_epoch * steps + times("eval", steps) * validation + saving

        def bytes_of(load: np.ndarray) -> float:
            return MARGIN * max(self.other_bytes, base + float(load @ memory_cost))

        steps = arguments.max_steps if arguments.max_steps > 0 else math.ceil(epochs * per_epoch)
        if recipe.options.max_minutes:
            steps = max(1, bisect_right(range(1, steps + 1), 60 * recipe.options.max_minutes, key=took))
        needed = round(bytes_of(largest))
        run = RunForecast(
            mixer=name,
            length=length,
            positions=round((loads[:, 2] / np.maximum(1, loads[:, 1])).max()),
            seconds_per_step=epoch / per_epoch,
            tokens_per_second=float(real * positions / epoch),
            peak_memory_bytes=needed,
            fits=None if self.memory is None else needed <= self.memory,
            steps=steps,
            epochs=round(steps / per_epoch, 3),
            seconds=took(steps),
            validations=times("eval", steps),
            seconds_per_validation=validation,
            measured=bool((own[:, 2] >= largest[2]).any()),
        )
        return run, largest, bytes_of

    @contextlib.contextmanager
    def _trainer(
        self, recipe: Recipe, prepared: Prepared, counted: Counted | None
    ) -> Iterator[tuple[LongspanTrainer[Any], TrainingArguments]]:
        """A trainer that writes nothing, and the arguments that it would have."""
        with tempfile.TemporaryDirectory() as folder:
            arguments = arguments_of(recipe, RunFolder(Path(folder, "run"), "new"), False)
            set_seed(arguments.seed)
            model = build_model(recipe, prepared, starting.start_of(recipe), counted)[0]
            silent = copy(arguments)
            silent.output_dir, silent.report_to, silent.max_steps, silent.disable_tqdm = folder, [], -1, True
            silent.eval_strategy = silent.logging_strategy = IntervalStrategy.NO
            silent.save_strategy = SaveStrategy.NO
            silent.load_best_model_at_end = silent.eval_on_start = silent.push_to_hub = False
            trainer = recipe.task.make_trainer(recipe, model, silent, prepared)
            trainer.raise_epochs_to(recipe.options.min_steps)
            trainer.layer_decay = recipe.options.layer_decay
            self._count_other_bytes()
            memory.release()
            yield trainer, arguments
            self._count_other_bytes()
        del model, trainer
        memory.release()
        self.peak.mark()

    def _count_other_bytes(self) -> None:
        self.other_bytes = max(self.other_bytes, self.peak.most())

    def _measured(self, trainer: LongspanTrainer[Any], known: np.ndarray) -> np.ndarray:
        """Load, seconds and additional bytes of batches that a trainer is trained on, if they are worth a try."""
        loads, loader, base = _loads(trainer), trainer.get_train_dataloader(), memory.resident()

        def allows(known: np.ndarray, load: np.ndarray) -> bool:
            seconds, extra = (float(load @ covering(known[:, :3], known[:, column], True)) for column in (3, 4))
            return seconds < MOST_SECONDS and (self.memory is None or base + extra < _USABLE * self.memory)

        chosen = [number for number in _spread(loads) if not len(known) or allows(known, loads[number])]
        if not chosen:
            return np.zeros((0, 5))
        watch, batches = Watch(loads[chosen], allows, self.peak, self.enough), list(loader.batch_sampler or ())
        each, epochs = trainer.args.gradient_accumulation_steps, trainer.args.num_train_epochs
        read = _Batches(batches[chosen[place]] for place in watch.order for _ in range(each))
        given = Loader(loader.dataset, batch_sampler=read, collate_fn=loader.collate_fn)
        trainer.get_train_dataloader = lambda: given
        trainer.args.num_train_epochs = 1
        trainer.remove_callback(PrinterCallback)
        trainer.remove_callback(ProgressCallback)
        if trainer.args.device.type == "cpu":
            trainer.add_callback(ReturnFreedMemory())
        trainer.add_callback(watch)
        trainer.train()
        self.peak.mark()
        trainer.args.num_train_epochs = epochs
        return watch.steps()

    def _show_progress(self, what: str) -> None:
        if self.progress:
            print(f"longspan: {what}", file=sys.stderr, flush=True)


class _Batches(list[Any]):
    """Batches that are the same in each epoch."""

    def set_epoch(self, epoch: int) -> None:
        """Change nothing."""


def _loads(trainer: LongspanTrainer[Any]) -> np.ndarray:
    """Load of each batch of the first epoch, `(n, 3)`."""
    rows = [max(1, len(batch)) for batch in trainer.get_train_dataloader().batch_sampler or ()]
    sizes = zip(trainer.batch_positions(0), rows, strict=True)
    return np.array([[1.0, size, size**2 / number] for size, number in sizes])


def _spread(loads: np.ndarray) -> list[int]:
    """Numbers of five batches from the cheapest to the dearest, the one with most positions among them."""
    order = np.lexsort(loads[:, 1:].T)
    chosen = [*order[np.linspace(0, len(loads) - 1, 4).astype(int)], loads[:, 1].argmax()]
    different = {tuple(loads[number]): int(number) for number in chosen}
    return sorted(different.values(), key=lambda number: (loads[number, 2], loads[number, 1]))


def _single_rows(recipe: Recipe) -> Recipe:
    """Recipe with a row in each batch."""
    options = replace(recipe.options, batch_tokens=1) if hasattr(recipe.options, "batch_tokens") else recipe.options
    return replace(recipe, training={**recipe.training, _ROWS: 1}, options=options)


def _longest(prepared: Prepared) -> int:
    """Length of the longest training example; 1 where they have none."""
    training = prepared.splits["train"]
    return int(np.max(lengths_of(training))) if "length" in training.column_names else 1


def _times(arguments: TrainingArguments, per_epoch: int, averages: bool, what: str, steps: int) -> int:
    """Number of validations ("eval") or checkpoints ("save") in and after a number of steps."""
    strategy, every = getattr(arguments, f"{what}_strategy"), getattr(arguments, f"{what}_steps")
    number = 0
    if strategy == SaveStrategy.BEST:
        return _times(arguments, per_epoch, averages, "eval", steps)
    if strategy == IntervalStrategy.EPOCH:
        number = -(-steps // per_epoch)
    elif strategy == IntervalStrategy.STEPS:
        # Below 1 it is a share of all steps, as in `Trainer`.
        every = every or arguments.logging_steps
        number = -(-steps // max(1, math.ceil(steps * every) if every < 1 else int(every)))
    # A mean of checkpoints is validated, and if it is no better, perhaps the last one again.
    return number + 2 * bool(what == "eval" and number and averages)


def cheaper_from(cost: np.ndarray, other: np.ndarray, recipe: Recipe) -> int | None:
    """Length from which on full batches take less time per position by the weights `cost` than by `other`.

    Lengths are tried in steps of a quarter of a doubling, up to a million. 0 means at all of them, None at none.
    """
    size, tokens = recipe.training[_ROWS], getattr(recipe.options, "batch_tokens", 0)
    least = None
    for length in (round(_SHORTEST * 2 ** (step / 4)) for step in range(64, -1, -1)):
        rows = min(size, max(1, tokens // length)) if tokens else size
        if (cost - other) @ [1, rows * length, rows * length**2] >= 0:
            return least
        least = length
    return 0


def fitting(
    mixer: str,
    recipe: Recipe,
    key: str,
    length: int | None,
    largest: np.ndarray,
    bytes_of: Callable[[np.ndarray], float],
    memory: int,
) -> Suggestion:
    """Largest batch of a recipe that fits into memory, up to 64 times its own; if no row does, the longest row.

    Sizes are powers of two of the recipe's. Where batches are made smaller, gradients are accumulated over more of
    them.

    Args:
        mixer: The mixer.
        recipe: Its recipe.
        key: Key that sets the length, "" for none.
        length: Its value; 0 or None if there is none.
        largest: Load of the recipe's largest batch.
        bytes_of: Memory of a load.
        memory: Memory that there is.
    """
    row, size, tokens = largest[2] / largest[1], recipe.training[_ROWS], getattr(recipe.options, "batch_tokens", 0)
    name, value = ("batch_tokens", tokens) if tokens and size * row > tokens else (_ROWS, size)
    for factor in (2.0**doublings for doublings in range(6, -31, -1)):
        load = np.maximum([1, row, row**2], largest * [1, factor, factor])
        if value * factor >= 1 and bytes_of(load) <= memory:
            words = [f"training.{name}={int(value * factor)}"]
            if factor < 1:
                each = recipe.training.get("gradient_accumulation_steps", 1)
                words.append(f"training.gradient_accumulation_steps={int(each / factor)}")
            return Suggestion(mixer, words, needed=factor < 1)
    longest = length or round(row)
    while key and longest > 1:
        longest //= 2
        shorter = row * (longest / (length or row)) ** (2 if key == "data.max_side" else 1)
        if bytes_of(np.array([1, shorter, shorter**2])) <= memory:
            return Suggestion(mixer, [f"{key}={longest}", f"training.{_ROWS}=1"], needed=True)
    return Suggestion(mixer, [], needed=True)
