"""What the verbs return: typed results, each with a `to_dict` that goes into JSON as it is."""

import dataclasses
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, Self

from longspan.results import html
from longspan.results.mistakes import UNKNOWN, Mistakes
from longspan.results.parts import NAMES, Parts
from longspan.results.scores import S, Scores

_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class TrainingResult(Generic[S]):
    """What `longspan.train` returns and `metrics.json` holds.

    Attributes:
        task: Name of the task.
        folder: The run folder.
        scores: Scores of the model that was kept, by split; the training split is not scored.
        history: Losses and scores in the order they were logged, with `epoch` and `step`.
        kept_epoch: The epoch whose model was kept.
        steps: Optimizer steps taken.
        epochs: Epochs trained.
        planned_steps: Optimizer steps that were planned; with "deadline", those that were taken.
        stopped: Why fewer steps were taken than planned. "early": validation scores no longer improved. "interrupted":
            training was stopped, and `finish` made a complete run of its last checkpoint. "deadline": no more steps fit
            into `training.max_minutes`.
        processes: How many processes shared the training.
        tokens_per_second: Real tokens of all processes per second of training; evaluation and saving not counted. This
            and `seconds` are over all sessions of a run that was resumed.
        padding_fraction: Share of padding in an epoch's batches, from 0 to 1.
        peak_memory_bytes: Largest memory use so far: of the GPU where there is one, otherwise of the process.
        parameters: Number of parameters, tied ones counted once.
        seconds: Time from start to end, without that between sessions.
        word_vectors_found: Tokens that pretrained word vectors were found for; None without such vectors.
        data: What was read, by split, and under "skipped" the rows left out by reason, under "encodings" those in
            other encodings than UTF-8.
        details: What else the task reports, such as its labels.
    """

    task: str
    folder: str
    scores: dict[str, S] = field(default_factory=dict)
    history: list[dict[str, float]] = field(default_factory=list)
    kept_epoch: float | None = None
    steps: int = 0
    processes: int = 1
    tokens_per_second: float = 0.0
    padding_fraction: float = 0.0
    peak_memory_bytes: int = 0
    parameters: int = 0
    seconds: float = 0.0
    word_vectors_found: int | None = None
    data: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    epochs: float = 0.0
    planned_steps: int = 0
    stopped: Literal["early", "interrupted", "deadline"] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON, with the scores of each split under its name and the details."""
        return flat(self, {split: scores.to_dict() for split, scores in self.scores.items()}, self.details)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], kind: type[S]) -> Self:
        """Return the result that `to_dict` turned into these `values`, with scores of `kind`.

        Raises:
            UserError: Scores are damaged.
        """
        known = {field.name for field in dataclasses.fields(cls)} - {"scores", "details"}
        scores = {split: kind.from_dict(values[split]) for split in _SPLITS if isinstance(values.get(split), dict)}
        details = {name: value for name, value in values.items() if name not in known | scores.keys()}
        own = {name: values[name] for name in known if name in values}
        return cls(scores=scores, details=details, **own)


@dataclass(frozen=True)
class Evaluation(Generic[S]):
    """What `longspan.evaluate` returns and `evaluation/metrics.json` holds.

    Attributes:
        task: Name of the task.
        split: The split scored, or "all" for all of other data.
        data: Where the examples are from.
        scores: Their scores.
        details: What else the task reports.
        skipped: Rows left out, by reason.
        folder: Folder of figures and numbers.
        checkpoint: The step after which the model was saved, if it is that of a checkpoint.
        mistakes: What the model gets wrong, the worst first.
        label_issues: Examples whose given label is likely wrong; None for tasks without one class per example.
    """

    task: str
    split: str
    data: str
    scores: S
    details: dict[str, Any]
    skipped: dict[str, int]
    folder: str
    checkpoint: int | None = None
    mistakes: Mistakes = UNKNOWN
    label_issues: Mistakes | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON, scores and details included."""
        found = flat(self, self.details, self.scores.to_dict())
        del found["label_issues"]
        issues = {} if self.label_issues is None else {"label_issues": self.label_issues.to_dict()}
        return {**found, "mistakes": self.mistakes.to_dict(), **issues}

    def _repr_html_(self) -> str:
        pictures = sorted(Path(self.folder).glob("*.png"))
        parts = html.parts(self.details["parts"], type(self.scores), self.split) if "parts" in self.details else ""
        return html.scores({self.split: self.scores}) + parts + "".join(map(html.figure, pictures))


@dataclass(frozen=True)
class Prediction:
    """What a model says about one example; tasks add fields.

    Attributes:
        where: Its place, such as "reviews.csv, row 17".
        error: Why there is no prediction; None if there is one. All fields that tasks add are then None.
        tokens_read: How many tokens of a truncated example were read; None if all were.
        tokens_total: How many it has; None if all were read.
    """

    where: str
    error: str | None = None
    tokens_read: int | None = field(default=None, kw_only=True)
    tokens_total: int | None = field(default=None, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that are not None."""
        return {name: value for name, value in _plain(self).items() if value is not None}


def _plain(value: Any) -> Any:
    """Return a value with dictionaries in place of data classes: `dataclasses.asdict`, without copies of the rest."""
    if dataclasses.is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, list | tuple) else value


EDGE = 100
"""Tokens averaged for latency at the start and the end of a text."""


@dataclass
class Statistics:
    """What a generation took so far.

    Attributes:
        prompt_tokens: Tokens of the prompt.
        prompt_seconds: Time to read them.
        new_tokens: Tokens generated, without the end of the document.
        seconds: Time to make them.
        ended: Whether the document came to its end.
        state_bytes: Size of what the model remembers now.
    """

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    new_tokens: int = 0
    seconds: float = 0.0
    ended: bool = False
    state_bytes: int = 0
    _early: list[float] = field(default_factory=list)
    _late: deque[float] = field(default_factory=lambda: deque(maxlen=EDGE))

    def add(self, seconds: float) -> None:
        """Count one more token, which took `seconds`."""
        self.seconds += seconds
        self.new_tokens += 1
        if len(self._early) < EDGE:
            self._early.append(seconds)
        self._late.append(seconds)

    def summary(self) -> dict[str, Any]:
        """Return the numbers by name, with `tokens_per_second` and the median milliseconds per token of the first and
        the last `EDGE` tokens, `early_milliseconds` and `late_milliseconds`; None where there are no tokens."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "prompt_seconds": self.prompt_seconds,
            "new_tokens": self.new_tokens,
            "seconds": self.seconds,
            "ended": self.ended,
            "tokens_per_second": self.new_tokens / self.seconds if self.seconds else None,
            "early_milliseconds": 1000 * statistics.median(self._early) if self._early else None,
            "late_milliseconds": 1000 * statistics.median(self._late) if self._late else None,
            "state_bytes": self.state_bytes,
        }


@dataclass(frozen=True)
class Spread:
    """A mean over seeds and the standard deviation around it, None for one seed."""

    mean: float
    spread: float | None


@dataclass(frozen=True)
class ComparedRun:
    """One run of a comparison: its scores, those of its parts, by split, and its costs, or the error that ended it."""

    mixer: str
    seed: int
    folder: str
    error: str | None = None
    scores: dict[str, Scores] = field(default_factory=dict)
    parts: dict[str, Parts] = field(default_factory=dict)
    steps: int = 0
    tokens_per_second: float = 0.0
    peak_memory_bytes: int = 0
    parameters: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON; a failed run has no scores and costs."""
        if self.error is not None:
            return {"mixer": self.mixer, "seed": self.seed, "folder": self.folder, "error": self.error}
        found = flat(self, {split: scores.numbers() for split, scores in self.scores.items()}, _parts(self.parts))
        del found["error"]
        return found


@dataclass(frozen=True)
class MixerSummary:
    """The finished runs of one mixer.

    Attributes:
        mixer: Its name, or a hybrid as A+B.
        scores: Mean and spread of each score, by split and name.
        steps: Mean and spread of the optimizer steps taken.
        seconds: Mean and spread of the time from start to end.
        tokens_per_second: Mean and spread of the training speed.
        peak_memory_bytes: The largest of any run.
        parameters: Number of parameters.
        seeds: Number of finished runs.
        parts: By split, the mean of the scores of counts, network and both, where models have such parts.
    """

    mixer: str
    scores: dict[str, dict[str, Spread]]
    steps: Spread
    seconds: Spread
    tokens_per_second: Spread
    peak_memory_bytes: int
    parameters: int
    seeds: int
    parts: dict[str, Parts] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON, with a score of a split as `SPLIT_SCORE`."""
        scores = {
            f"{split}_{name}": dataclasses.asdict(value)
            for split, row in self.scores.items()
            for name, value in row.items()
        }
        return flat(self, scores, _parts(self.parts))


@dataclass(frozen=True)
class ComparedBaseline:
    """A baseline on the same splits, or the error that ended it.

    Attributes:
        baseline: Its name.
        does: What it does, in one sentence.
        folder: Where its recipe and its metrics.json are.
        error: Why it has no scores; None if it has.
        scores: Its scores by split.
        chosen: The settings chosen on the validation split.
        peak_memory_bytes, parameters, seconds: As for a run.
    """

    baseline: str
    does: str
    folder: str
    error: str | None = None
    scores: dict[str, Scores] = field(default_factory=dict)
    chosen: dict[str, Any] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    parameters: int = 0
    seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON; a failed one has no scores and costs."""
        if self.error is not None:
            return {"baseline": self.baseline, "does": self.does, "folder": self.folder, "error": self.error}
        found = flat(self, {split: scores.numbers() for split, scores in self.scores.items()})
        del found["error"]
        return found


@dataclass(frozen=True)
class Comparison:
    """What `longspan.compare` returns and `comparison.json` holds.

    Attributes:
        recipe: The recipe's name.
        task: Name of the task.
        kind: The task's scores, which say how tables call them and which way is better.
        overrides: What was changed in the recipe.
        folder: Where the runs are.
        runs: Every run.
        summary: One row per mixer with a finished run.
        baselines: What the mixers were compared with besides each other.
        conclusion: What counts and networks contribute, in words; "" for models without such parts.
    """

    recipe: str
    task: str
    kind: type[Scores]
    overrides: Sequence[str]
    folder: str
    runs: list[ComparedRun]
    summary: list[MixerSummary]
    baselines: list[ComparedBaseline] = field(default_factory=list)
    conclusion: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return everything as JSON."""
        return {
            "recipe": self.recipe,
            "task": self.task,
            "overrides": list(self.overrides),
            "folder": self.folder,
            "runs": [run.to_dict() for run in self.runs],
            "summary": [row.to_dict() for row in self.summary],
            "baselines": [row.to_dict() for row in self.baselines],
            **({"conclusion": self.conclusion} if self.conclusion else {}),
        }

    def _repr_html_(self) -> str:
        rows = [row.to_dict() for row in self.summary] + [row.to_dict() for row in self.baselines]
        means = [{name: _mean(value) for name, value in row.items() if name not in _APART} for row in rows]
        return html.records(means) + self._parts_html() + html.figure(Path(self.folder, "comparison.png"))

    def _parts_html(self) -> str:
        rows = [
            [row.mixer, split, *(parts.values[name] for name in NAMES)]
            for row in self.summary
            for split, parts in row.parts.items()
        ]
        return html.table(["mixer", "split", *NAMES], rows) + html.paragraph(self.conclusion) if rows else ""


_APART = ("folder", "does", "chosen", "parts")


def _parts(found: Mapping[str, Parts]) -> dict[str, Any]:
    return {"parts": {split: parts.to_dict() for split, parts in found.items()}} if found else {}


def _mean(value: Any) -> Any:
    return value["mean"] if isinstance(value, dict) and value.keys() == {"mean", "spread"} else value


def flat(result: Any, *more: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a result but for scores, details and parts, which follow as `more`.

    Raises:
        ValueError: Two of them have one name.
    """
    fields = {entry.name: getattr(result, entry.name) for entry in dataclasses.fields(result)}
    plain = {name: value for name, value in fields.items() if name not in ("scores", "details", "parts")}
    for part in more:
        if taken := sorted(plain.keys() & part.keys()):
            raise ValueError(
                f"expected details and scores by names that {type(result).__name__} does not have, got {taken[0]!r}; "
                "rename it."
            )
        plain |= part
    return {name: dataclasses.asdict(value) if isinstance(value, Spread) else value for name, value in plain.items()}
