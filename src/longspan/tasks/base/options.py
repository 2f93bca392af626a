"""Options of a task as dataclasses, from which recipe keys, command-line flags, help and messages are made.

Nothing heavy is imported here, so that `--help` answers at once.
"""

import argparse
import dataclasses
import math
import reprlib
import types
import typing
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from longspan.data.config import DataConfig
from longspan.errors import UserError, check_choice, suggestion
from longspan.errors.hints import expectation, matches

Options = TypeVar("Options")


def option(default: Any, text: str) -> Any:
    """Return a field of an options dataclass; `text` is its help, without the default."""
    return dataclasses.field(default=default, metadata={"help": text})


@dataclass(frozen=True)
class ModelOptions:
    """Keys of a recipe's `[model]` besides those of `LongspanConfig`, which say what a model is."""

    start_from: str = option(
        "",
        "run folder to initialise from: tokens, embeddings and layers; keys of the model's shape that the recipe "
        "leaves unset are those of that run, and only the head is new (docs/pretraining.md)",
    )


@dataclass(frozen=True)
class TrainingOptions:
    """Keys of a recipe's `[training]` besides those of `transformers.TrainingArguments`.

    A task with more keys subclasses this. Values are checked in `__post_init__`, which raises UserError; one of a
    subclass calls that of its base.
    """

    word_vectors: str = option("", "file of pretrained word vectors in GloVe's text format")
    min_steps: int = option(
        0,
        "minimum number of steps for small data: raises num_train_epochs, to 50 at most; 0 for no minimum. Setting "
        "num_train_epochs or max_steps switches off the minimum of a recipe",
    )
    early_stopping_patience: int = option(0, "stop after N evaluations in a row without improvement; 0 for never")
    layer_decay: float = option(
        1.0, "layer-wise learning-rate decay: factor of the rate for each layer above; embeddings are below all layers"
    )
    freeze: str | int = option(
        "",
        "parameters to freeze: embeddings, backbone (embeddings and all layers), or a number of layers from below, "
        "with the embeddings",
    )
    average_last: int = option(
        0,
        "after training, the mean of the weights of the last N checkpoints is kept if it is better on the validation "
        "split; keeps N + 1 checkpoints on disk; 0 for no mean",
    )
    max_minutes: float = option(
        0.0,
        "deadline: minutes from the first step to the end of the run, final scores and report included; "
        "num_train_epochs may end it earlier; 0 for no deadline",
    )

    def __post_init__(self) -> None:
        check_at_least(self, min_steps=0, early_stopping_patience=0, average_last=0)
        if self.average_last == 1:
            raise UserError(
                "expected training.average_last of at least 2 checkpoints, or 0 for no mean, got 1; set another."
            )
        if not 0 < self.layer_decay <= 1:
            raise UserError(
                f"expected training.layer_decay above 0 and at most 1 (all alike), got {self.layer_decay}; set another."
            )
        if isinstance(self.freeze, str) and self.freeze:
            check_choice("training.freeze", self.freeze, ("embeddings", "backbone", "a number of layers"))
        elif self.freeze != "" and self.freeze < 0:
            raise UserError(
                f"expected training.freeze of at least 0 layers, got {self.freeze}; choose a larger number."
            )
        if not 0 <= self.max_minutes < math.inf:
            raise UserError(
                f"expected training.max_minutes to be at least 0 (no deadline), got {self.max_minutes}; set another."
            )


@dataclass(frozen=True)
class LengthTrainingOptions(TrainingOptions):
    """Training options of tasks whose batches have examples of similar length."""

    batch_tokens: int = option(32768, "maximum number of tokens in a batch, padding included; 0 means no limit")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, batch_tokens=0)


MAX_EVAL_TOKENS = 250_000
"""Enough for all of WikiText's splits; see LOG.md for the error of estimates from that number of tokens."""


@dataclass(frozen=True)
class CorpusData(DataConfig):
    """Documents without labels.

    Attributes:
        join_rows: Whether the rows of a table or Hub data set are the lines of one document.
    """

    join_rows: bool = False


@dataclass(frozen=True)
class ExcerptTrainingOptions(TrainingOptions):
    """Training options of tasks that read documents without labels."""

    max_eval_tokens: int = option(
        MAX_EVAL_TOKENS,
        "maximum number of tokens scored of a split during and after training; 0 means all, as in `longspan evaluate`",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, max_eval_tokens=0)


@dataclass(frozen=True)
class CorpusTrainingOptions(ExcerptTrainingOptions):
    """Training options of tasks that read documents as streams, a segment of tokens at a time."""

    segment_length: int = option(256, "tokens that a row reads in one step")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.segment_length < 1:
            raise UserError(
                "the task needs training.segment_length, how many tokens a row reads in one step, got "
                f"{self.segment_length}; 256 suits most."
            )


@dataclass(frozen=True)
class EvaluationOptions:
    """Keyword arguments of `longspan.evaluate`, and flags of the verb, that only one task has; by default none."""


@dataclass(frozen=True)
class PredictionOptions:
    """Keyword arguments of `longspan.predict`, and flags of the verb, that only one task has; by default none."""


@dataclass(frozen=True)
class SoundOptions(PredictionOptions):
    """How sound is read for predictions."""

    pcm_rate: int = option(0, "samples per second of raw 16-bit little-endian mono PCM on standard input, '-'")

    def __post_init__(self) -> None:
        check_at_least(self, pcm_rate=0)


@dataclass(frozen=True)
class SearchOptions(EvaluationOptions):
    """How a text is written for each source: by beam search, or as the one of several drawn texts that agrees best."""

    beams: int | None = option(None, "beams of beam search, 1 for greedy search; as in training unless given")
    candidates: int = option(
        0,
        "texts drawn at random instead of beams, of which the one that agrees best with the others is given "
        "(minimum Bayes risk decoding); 0 for beams",
    )
    length_penalty: float = option(1.0, "exponent of the length by which the score of a beam is divided")
    min_new_tokens: int = option(0, "minimum number of tokens of a text, for texts that end too early")
    max_new_tokens: int | None = option(
        None,
        "maximum number of tokens of a text; unless given, 256 for a summary, and for a translation twice those "
        "of its source and 20 more",
    )

    def __post_init__(self) -> None:
        check_at_least(self, beams=1, candidates=0, min_new_tokens=0, max_new_tokens=1)
        of_beams = {"beams": self.beams is not None, "length_penalty": self.length_penalty != 1}
        for name in (name for name, given in of_beams.items() if given and self.candidates):
            raise UserError(
                f"expected candidates without {name}, which is for beams, got {name}={getattr(self, name)} and "
                f"candidates={self.candidates}; leave one out."
            )
        if self.max_new_tokens is not None and self.min_new_tokens > self.max_new_tokens:
            raise UserError(
                f"min_new_tokens must be at most max_new_tokens={self.max_new_tokens}, got {self.min_new_tokens}; "
                "lower it."
            )


@dataclass(frozen=True)
class GenerationOptions:
    """How a text is continued.

    Raises:
        UserError: For values out of range.
    """

    max_new_tokens: int = option(256, "maximum number of tokens to generate")
    temperature: float = option(1.0, "divisor of the logits; below 1, likely tokens are favoured")
    top_k: int = option(0, "sample from the N most likely tokens; 0 means all")
    top_p: float = option(1.0, "sample from the most likely tokens whose probabilities add up to X")
    greedy: bool = option(False, "always take the most likely token")
    seed: int = option(0, "random seed for sampling")
    ignore_end: bool = option(False, "continue after the end of the document")

    def __post_init__(self) -> None:
        check_at_least(self, max_new_tokens=1, top_k=0)
        if not self.temperature > 0:
            raise UserError(
                f"temperature must be above 0, got {self.temperature}; for the most likely tokens, use greedy."
            )
        if not 0 < self.top_p <= 1:
            raise UserError(f"top_p must be above 0 and at most 1, which is all tokens, got {self.top_p}; change it.")


@dataclass(frozen=True)
class ReadingOptions:
    """How the sources of predictions are read, where that differs from training."""

    text_column: str = option("", "column with the documents, if not the recipe's; with --no-header, its number")
    encoding: str = option("", "encoding of files, if not the recipe's; auto to detect it")
    delimiter: str = option("", "separator of the fields of csv and tsv files, such as ; or tab")
    header: bool | None = option(None, "whether their first row has the names of the columns")


def names(kind: type) -> list[str]:
    """Return the names of the options in a dataclass."""
    return [field.name for field in dataclasses.fields(kind)]


def make(kind: type[Options], given: Mapping[str, Any], what: str) -> Options:
    """Return an options dataclass from keyword arguments.

    Args:
        kind: The dataclass.
        given: Values by name.
        what: What the options belong to, for the message.

    Raises:
        UserError: A name is unknown, or a value of the wrong type or out of range.
    """
    known = names(kind)
    for name in given:
        if name not in known:
            hint = suggestion(name, known) if known else "it has none."
            raise UserError(f"{what} has no option {name!r}; {hint}")
    hints = typing.get_type_hints(kind)
    for name, value in given.items():
        plain = _plain(hints[name])
        if isinstance(value, str) and typing.get_origin(plain) is typing.Literal:
            check_choice(name, value, typing.get_args(plain))
        if not matches(value, hints[name]):
            raise UserError(f"{name} must be {expectation(hints[name])}, got {reprlib.repr(value)}; change it.")
    return kind(**given)


def check_at_least(options: Any, **least: int) -> None:
    """Raise UserError unless each named value is at least the number given; None is left alone."""
    for name, smallest in least.items():
        value = getattr(options, name)
        if value is not None and value < smallest:
            raise UserError(f"{name} must be at least {smallest}, got {value}; choose a larger one.")


def add_flags(parser: Any, kind: type, only: Collection[str] | None = None) -> None:
    """Add one flag for each option to an argparse parser or group. Flags not given are absent from the result.

    Args:
        parser: The parser or group.
        kind: The options.
        only: The names of those that get a flag; None for all.
    """
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        if only is not None and field.name not in only:
            continue
        flag = f"--{field.name.replace('_', '-')}"
        default = "" if field.default in (None, "", False) else f" (default: {field.default})"
        text = f"{field.metadata['help']}{default}"
        plain = _plain(hints[field.name])
        if plain is bool:
            action: Any = "store_true" if field.default is False else argparse.BooleanOptionalAction
            parser.add_argument(flag, action=action, default=argparse.SUPPRESS, help=text)
        else:
            choices = typing.get_args(plain) if typing.get_origin(plain) is typing.Literal else None
            # Not argparse's own `choices`: `make` says in one sentence which one was meant.
            parser.add_argument(
                flag,
                type=str if choices else plain,
                metavar=f"{{{','.join(map(str, choices))}}}" if choices else _METAVARS.get(plain, "X"),
                default=argparse.SUPPRESS,
                help=text,
            )


_METAVARS: dict[Any, str] = {int: "N", float: "X", str: "TEXT"}


def _plain(hint: Any) -> Any:
    """Return the type of an option without None; of several types, text."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        arms = [arm for arm in typing.get_args(hint) if arm is not types.NoneType]
        return arms[0] if len(arms) == 1 else str
    return hint
