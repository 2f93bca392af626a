"""Results that the verbs return, of runs and comparisons, each a `Result`."""

import dataclasses
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Self

from longspan.results import html
from longspan.results.base import HIDDEN, LAST, Result, figures, merged, tabled
from longspan.results.mistakes import UNKNOWN, Mistakes
from longspan.results.parts import NAMES, Parts, describe_parts
from longspan.results.scores import S, Scores

_SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class TrainingResult(Result, Generic[S]):
    """Result of `longspan.train`, in `metrics.json`.

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
        processes: Number of processes that shared the training.
        tokens_per_second: Real tokens of all processes per second of training; evaluation and saving not counted. This
            and `seconds` are over all sessions of a run that was resumed.
        padding_fraction: Share of padding in an epoch's batches, from 0 to 1.
        peak_memory_bytes: Largest memory use so far: of the GPU where there is one, otherwise of the process.
        parameters: Number of parameters, tied ones counted once.
        seconds: Time from start to end, without that between sessions.
        word_vectors_found: Tokens that pretrained word vectors were found for; None without such vectors.
        data: Data that were read, by split, and under "skipped" the rows left out by reason, under "encodings" those in
            other encodings than UTF-8.
        details: Further facts from the task, such as its labels.
    """

    task: str
    folder: str = field(metadata=figures("learning_curve.png"))
    scores: dict[str, S] = field(default_factory=dict, metadata=merged())
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
    details: dict[str, Any] = field(default_factory=dict, metadata=merged())
    epochs: float = 0.0
    planned_steps: int = 0
    stopped: Literal["early", "interrupted", "deadline"] | None = None

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

    def html(self) -> str:
        """Tables and figures for notebooks."""
        return html.table(["task", "run folder"], [[self.task, self.folder]]) + _scores(self.scores) + super().html()


@dataclass(frozen=True)
class Evaluation(Result, Generic[S]):
    """Result of `longspan.evaluate`, in `evaluation/metrics.json`.

    Attributes:
        task: Name of the task.
        split: The split scored, or "all" for all of other data.
        data: Where the examples are from.
        scores: Their scores.
        details: Further facts from the task.
        skipped: Rows left out, by reason.
        folder: Folder of figures and numbers.
        checkpoint: The step after which the model was saved, if it is that of a checkpoint.
        mistakes: Mistakes of the model, the worst first.
        label_issues: Examples whose given label is likely wrong; None for tasks without one class per example.
    """

    task: str
    split: str
    data: str
    scores: S = field(metadata=merged())
    details: dict[str, Any] = field(metadata=merged())
    skipped: dict[str, int]
    folder: str = field(metadata=figures("*.png"))
    checkpoint: int | None = None
    mistakes: Mistakes = UNKNOWN
    label_issues: Mistakes | None = field(default=None, metadata=LAST)

    def html(self) -> str:
        """Tables and figures for notebooks."""
        shown = _scores({self.split: self.scores})
        if "parts" in self.details:
            parts = Parts.from_dict(self.details["parts"])
            word = self.scores.shown().get(parts.score, parts.score)
            rows = ([name, parts.values[name], *parts.intervals[name]] for name in NAMES)
            shown += html.table(["part", f"{self.split} {word}", "95 % interval from", "to"], rows)
            shown += html.paragraph(describe_parts(parts, word, "{:.4g}".format))
        return shown + super().html()


def _scores(splits: Mapping[str, Scores]) -> str:
    """A table with a row for each split."""
    words = {name: word for scores in splits.values() for name, word in scores.shown().items()}
    rows = ([split, *map(scores.numbers().get, words)] for split, scores in splits.items())
    return html.table(["split", *words.values()], rows)


@dataclass(frozen=True)
class Prediction(Result):
    """Prediction of a model for one example; tasks add fields.

    Attributes:
        where: Its place, such as "reviews.csv, row 17".
        error: Why there is no prediction; None if there is one. All fields that tasks add are then None.
        tokens_read: Number of tokens that were read of a truncated example; None if all were.
        tokens_total: Number of tokens that it has; None if all were read.
        unfamiliar: True if its words are unusually rare in the training data, otherwise None. Known of whole texts.
    """

    where: str
    error: str | None = None
    tokens_read: int | None = field(default=None, kw_only=True)
    tokens_total: int | None = field(default=None, kw_only=True)
    unfamiliar: bool | None = field(default=None, kw_only=True)

    def to_dict(self) -> dict[str, Any]:
        """The fields that are not None."""
        return {name: value for name, value in super().to_dict().items() if value is not None}


EDGE = 100
"""Tokens averaged for latency at the start and the end of a text."""


@dataclass
class Statistics:
    """Time, tokens and memory of a generation so far.

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


#: Scores in comparisons: the numbers that tables show.
_NUMBERS = merged(lambda _, scores: {split: one.numbers() for split, one in scores.items()})


@dataclass(frozen=True)
class ComparedRun(Result):
    """One run of a comparison: its scores, those of its parts, by split, and its costs, or the error that ended it."""

    mixer: str
    seed: int
    folder: str
    error: str | None = field(default=None, metadata=LAST)
    scores: dict[str, Scores] = field(default_factory=dict, metadata=_NUMBERS)
    parts: dict[str, Parts] = field(default_factory=dict, metadata=LAST)
    steps: int = 0
    tokens_per_second: float = 0.0
    peak_memory_bytes: int = 0
    parameters: int = 0
    seconds: float = 0.0


def _by_split_and_name(_: str, scores: Mapping[str, Mapping[str, Spread]]) -> dict[str, Spread]:
    return {f"{split}_{name}": one for split, row in scores.items() for name, one in row.items()}


@dataclass(frozen=True)
class MixerSummary(Result):
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
    scores: dict[str, dict[str, Spread]] = field(metadata=merged(_by_split_and_name))
    steps: Spread
    seconds: Spread
    tokens_per_second: Spread
    peak_memory_bytes: int
    parameters: int
    seeds: int
    parts: dict[str, Parts] = field(default_factory=dict, metadata=LAST)


@dataclass(frozen=True)
class ComparedBaseline(Result):
    """A baseline on the same splits, or the error that ended it.

    Attributes:
        baseline: Its name.
        does: Its description, in one sentence.
        folder: Where its recipe and its metrics.json are.
        error: Why it has no scores; None if it has.
        scores: Its scores by split.
        chosen: The settings chosen on the validation split.
        peak_memory_bytes, parameters, seconds: As for a run.
    """

    baseline: str
    does: str
    folder: str
    error: str | None = field(default=None, metadata=LAST)
    scores: dict[str, Scores] = field(default_factory=dict, metadata=_NUMBERS)
    chosen: dict[str, Any] = field(default_factory=dict)
    peak_memory_bytes: int = 0
    parameters: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Comparison(Result):
    """Result of `longspan.compare`, in `comparison.json`.

    Attributes:
        recipe: The recipe's name.
        task: Name of the task.
        kind: The task's scores, which say how tables call them and which way is better.
        overrides: Changes to the recipe.
        folder: Where the runs are.
        runs: Every run.
        summary: One row per mixer with a finished run.
        baselines: Baselines that the mixers were compared with.
        conclusion: Contributions of counts and networks, in words; "" for models without such parts.
    """

    recipe: str
    task: str
    kind: type[Scores] = field(metadata=HIDDEN)
    overrides: Sequence[str]
    folder: str = field(metadata=figures("comparison.png"))
    runs: list[ComparedRun]
    summary: list[MixerSummary] = field(metadata=tabled(without=("parts",)))
    baselines: list[ComparedBaseline] = field(
        default_factory=list, metadata=tabled(without=("does", "folder", "chosen"))
    )
    conclusion: str = field(default="", metadata=LAST)

    def html(self) -> str:
        """Tables and figures for notebooks."""
        rows = [
            [row.mixer, split, *(parts.values[name] for name in NAMES)]
            for row in self.summary
            for split, parts in row.parts.items()
        ]
        shown = html.table(["mixer", "split", *NAMES], rows) + html.paragraph(self.conclusion) if rows else ""
        return super().html() + shown
