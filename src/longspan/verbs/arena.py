"""The Long Range Arena (Tay et al. 2021, https://arxiv.org/abs/2011.04006): `arena`.

Each mixer is trained on each challenge for the same time: from scratch, and from a model that learned masked symbols of
the challenge's own training inputs for as long (Amos et al. 2024, https://arxiv.org/abs/2310.02980). Layers of short
convolutions are the control: what they reach needs no long range. All of it is done by `compare`.
"""

import json
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from longspan.challenges import CHALLENGES
from longspan.challenges.base import ABOUT, SPLITS, Challenge
from longspan.data.processor import json_object
from longspan.errors import UserError, check_choice
from longspan.machine import imports, locks
from longspan.recipes import keys, load, split_override, starting
from longspan.report import duration
from longspan.report.arena import arena_figure, arena_summary
from longspan.results import ComparedRun
from longspan.results.arena import Arena, ArenaRun, Start
from longspan.results.outputs import write_json, write_text
from longspan.verbs.compare import Changes, compared, planned

CONTROL = "convolution"
"""The mixer whose layers are the control."""

PRETRAINING = "masked-words"
"""The recipe of pretraining."""

_OF_TRAINING = ("learning_rate", "optim", "lr_scheduler_type", "warmup_steps", "adam_beta2", "weight_decay")
"""Settings of training that pretraining shares with what follows it."""


def arena(
    mixers: Sequence[str],
    tasks: Sequence[str] = (),
    overrides: Sequence[str] = (),
    run: Path | str | None = None,
    *,
    data: Mapping[str, Path | str] = MappingProxyType({}),
    minutes: float = 10.0,
    pretrain: bool = True,
    allow_imports: Iterable[str] = (),
) -> Arena:
    """Train each mixer on tasks of the Long Range Arena, for the same time each.

    Data are generated or converted once, into `run/data`. Finished runs are kept and unfinished ones continue from
    their checkpoint, so that calling this again completes what was interrupted. Tables and the figure are written after
    each part.

    Args:
        mixers: Mixers; "a+b" is a hybrid of the two. A control of short convolutions is added.
        tasks: Names of `longspan.challenges.CHALLENGES`; by default, those that need no data and those in `data`.
        overrides: Settings of all trainings, as for `longspan.recipes.load`. What pretraining does not know, such as
            `model.pooling`, is left out of it.
        run: Where data, runs and results go; default `runs/arena`.
        data: Your copy of the data of tasks that need some (`Challenge.needs`), by the name of the task.
        minutes: Time for each training, validations included.
        pretrain: Whether models are trained from masked symbols, too, in addition to from scratch.
        allow_imports: Packages or modules that dotted paths may import.

    Returns:
        All runs, those that failed with their errors: also written to `arena.json`, `arena.md` and `arena.png`.

    Raises:
        UserError: An unknown mixer or task, a task without its data or with data of another kind, or settings that fit
            no model: before any training starts. Also a folder that holds other runs, and no run that succeeded.
    """
    for what, names in (("mixers", mixers), ("tasks", tasks)):
        if isinstance(names, str):
            raise UserError(f"expected {what} to be several names, got the text {names!r}; write [{names!r}].")
    if not mixers:
        raise UserError("expected at least one mixer, got none; name some.")
    if not minutes > 0:
        raise UserError(f"expected minutes above 0 for each training, got {minutes:g}; 10 is a quick look.")
    with imports.allow(*allow_imports):
        names = list(dict.fromkeys([*mixers, CONTROL]))
        folder = Path(run or Path("runs", "arena"))
        contests = [_Contest(one, given, folder, overrides) for one, given in _chosen(tasks, data)]
        for contest in contests:
            planned(contest.challenge.recipe, names, 1, contest.changes(), minutes)
            if pretrain:
                planned(PRETRAINING, names, 1, contest.pretraining(), minutes)
        trainings = len(contests) * len(names) * (3 if pretrain else 1)
        told = f"each of at most {duration(60 * minutes)}, {duration(60 * minutes * trainings)} in all"
        print(f"{trainings} trainings, {told}, besides reading data and scoring", file=sys.stderr)
        folder.mkdir(parents=True, exist_ok=True)
        with locks.lock_folder(folder, "one arena"):
            for contest in contests:
                contest.write()
            result = Arena(str(folder), minutes, list(overrides), [])
            for rows in _train_all(contests, names, set(names) - set(mixers), minutes, pretrain):
                result = Arena(result.folder, minutes, result.overrides, [*result.runs, *rows])
                _write(result, folder)
    errors = result.errors()
    if len(errors) == len(result.runs):
        raise UserError(f"none of the {len(errors)} runs succeeded; the first: {errors[0]}")
    return result


def _chosen(tasks: Sequence[str], data: Mapping[str, Path | str]) -> list[tuple[Challenge, Path | None]]:
    """Return the challenges, in the order of the paper, with the data of the user."""
    for name in (*tasks, *data):
        check_choice("task", name, CHALLENGES)
    wanted = set(tasks) or {name for name, one in CHALLENGES.items() if not one.needs or name in data}
    for name in data:
        if name not in wanted:
            raise UserError(f"expected data for the tasks {', '.join(tasks)}, got some for {name}; leave them out.")
        if not CHALLENGES[name].needs:
            raise UserError(
                f"expected no data for {name}, as they are generated, got {str(data[name])!r}; leave it out."
            )
    chosen = [CHALLENGES[name] for name in CHALLENGES if name in wanted]
    for one in chosen:
        if one.needs and one.name not in data:
            raise UserError(
                f"expected data for the task {one.name}, got none; add --data {one.name}=PATH, {one.needs}."
            )
    return [(one, Path(data[one.name]).expanduser() if one.needs else None) for one in chosen]


class _Contest:
    """A challenge with its data and the settings of its trainings."""

    def __init__(self, challenge: Challenge, given: Path | None, folder: Path, overrides: Sequence[str]) -> None:
        self.challenge, self.given, self.overrides = challenge, given, overrides
        self.runs, self.data = folder / challenge.name, folder / "data" / challenge.name

    def write(self) -> None:
        """Write the data, unless they are there.

        Raises:
            UserError: Those there come from other files, or the user's are of another form.
        """
        about, source = self.data / ABOUT, None if self.given is None else str(self.given.absolute())
        if not about.exists():
            print(f"data of {self.challenge.name}: {self.data}", file=sys.stderr)
            self.challenge.write(self.data, self.given)
            return
        try:
            found = json.loads(about.read_text(encoding="utf-8"))["source"]
        except (ValueError, TypeError, KeyError):
            raise UserError(
                f"expected to read where the data come from in {str(about)!r}, got a damaged file; delete its folder."
            ) from None
        if found != source:
            raise UserError(
                f"expected the data in {str(self.data)!r} to come from {source!r}, got those from {found!r}; delete "
                "that folder, or name another one with --run."
            )

    def changes(self, start: Path | None = None) -> Changes:
        """Changes to the recipe of this challenge; `start` is the run that models start from."""
        files = [f"data.{split}={self.data / f'{split}.jsonl'}" for split in SPLITS]
        more = [] if start is None else [f"model.start_from={start}"]
        return Changes([*files, *self.challenge.settings, *self.overrides, *more], {}, None)

    def pretraining(self) -> Changes:
        """Return the same for the recipe of pretraining: a model of that shape, trained alike on those inputs."""
        recipe, masked = self.changes().applied(self.challenge.recipe), load(PRETRAINING).task
        known = keys.table_keys("training", masked)
        own = [each for each in self.overrides if _is_known(each, known)]
        files = [f"data.{split}={self.data / f'{split}.jsonl'}" for split in ("train", "validation")]
        length, together = self.challenge.length, recipe.options.batch_tokens
        training = {
            **{key: recipe.training[key] for key in _OF_TRAINING if key in recipe.training},
            "segment_length": length,
            "per_device_train_batch_size": max(1, together // length),
            "per_device_eval_batch_size": max(1, together // length),
        }
        data = {key: getattr(recipe.data, key) for key in starting.TOKENS} | {"text_column": self.challenge.column}
        model = {key: recipe.model[key] for key in starting.shape_of(masked) if key in recipe.model}
        return Changes([*files, *own], {"data": data, "model": model, "training": training}, None)


def _is_known(override: str, known: Mapping[str, Any]) -> bool:
    """Say whether an override sets one of these keys of `[training]`."""
    parts, _ = split_override(override)
    return parts[0] == "training" and parts[1] in known


def _train_all(
    contests: Sequence[_Contest], names: Sequence[str], controls: set[str], minutes: float, pretrain: bool
) -> Iterator[list[ArenaRun]]:
    """Train all, and yield the results of each part: of every challenge from scratch first."""
    for contest in contests:
        runs = _compared(contest.challenge.recipe, names, contest.changes(), contest.runs / "scratch", minutes)
        yield _rows(contest, "scratch", runs, controls)
    for contest in contests if pretrain else ():
        place = contest.runs / "pretraining"
        starts = _compared(PRETRAINING, names, contest.pretraining(), place, minutes)
        runs = [
            start
            if start.error is not None
            else _compared(
                contest.challenge.recipe,
                [start.mixer],
                contest.changes(Path(start.folder)),
                contest.runs / "pretrained" / start.mixer,
                minutes,
            )[0]
            for start in starts
        ]
        yield _rows(contest, "pretrained", runs, controls)


def _compared(recipe: str, names: Sequence[str], changes: Changes, place: Path, minutes: float) -> list[ComparedRun]:
    return compared(recipe, names, (), 1, changes, place, minutes).runs


def _rows(contest: _Contest, start: Start, runs: Sequence[ComparedRun], controls: set[str]) -> list[ArenaRun]:
    def score(run: ComparedRun) -> float | None:
        return None if run.error is not None else run.scores["test"].numbers()["accuracy"]

    def chance(run: ComparedRun) -> float | None:
        return None if run.error is not None else 1 / len(json_object(Path(run.folder, "config.json"))["id2label"])

    name = contest.challenge.name
    return [ArenaRun(name, start, run.mixer in controls, score(run), run, chance(run)) for run in runs]


def _write(result: Arena, folder: Path) -> None:
    write_json(folder / "arena.json", result.to_dict())
    write_text(folder / "arena.md", f"# Long Range Arena\n\n{arena_summary(result, 'github')}\n")
    arena_figure(result, folder / "arena.png")
