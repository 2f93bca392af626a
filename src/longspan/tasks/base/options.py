"""Options of all tasks: keys of recipes besides those of transformers and of models, and flags.

Nothing heavy is imported here, so that `--help` answers at once.
"""

import math
from dataclasses import dataclass
from typing import Any

from longspan.data.config import DataConfig
from longspan.errors import UserError, check_choice
from longspan.options import Options, Range, option

#: A share that is neither nothing nor all.
SHARE = Range(above=0, below=1)


@dataclass(frozen=True)
class ModelOptions(Options):
    """Keys of a recipe's `[model]` besides those of `LongspanConfig`, which say what a model is."""

    start_from: str = option(
        "",
        "run folder to initialise from: tokens, embeddings and layers; keys of the model's shape that the recipe "
        "leaves unset are those of that run, and only the head is new (docs/pretraining.md)",
    )


@dataclass(frozen=True)
class TrainingOptions(Options):
    """Keys of a recipe's `[training]` besides those of `transformers.TrainingArguments`.

    A task with more keys subclasses this. What their declarations cannot say is checked in `__post_init__`, which calls
    that of its base.
    """

    table = "training"

    word_vectors: str = option("", "file of pretrained word vectors in GloVe's text format")
    min_steps: int = option(
        0,
        "minimum number of steps for small data: raises num_train_epochs, to 50 at most; 0 for no minimum. Setting "
        "num_train_epochs or max_steps switches off the minimum of a recipe",
        Range(0),
    )
    early_stopping_patience: int = option(
        0, "stop after N evaluations in a row without improvement; 0 for never", Range(0)
    )
    layer_decay: float = option(
        1.0,
        "layer-wise learning-rate decay: factor of the rate for each layer above; embeddings are below all layers",
        Range(above=0, most=1),
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
        Range(0),
    )
    save_hours: float = option(
        0.0,
        "hours after which a checkpoint is saved if none was, besides those of save_strategy; save_total_limit bounds "
        "how many are kept; 0 for none",
        Range(0, below=math.inf),
    )
    context_parallel: int = option(
        1,
        "number of processes that cut each row into slices, for rows too long for one; it divides the number of "
        "processes that torchrun starts (docs/guides/one-sequence-many-devices.md)",
        Range(1),
    )
    max_minutes: float = option(
        0.0,
        "deadline: minutes from reading the data to the end of the run, final scores and report included; "
        "num_train_epochs may end it earlier; 0 for no deadline",
        Range(0, below=math.inf),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.average_last == 1:
            raise UserError(
                "expected training.average_last of at least 2 checkpoints, or 0 for no mean, got 1; set another."
            )
        if isinstance(self.freeze, str) and self.freeze:
            check_choice("training.freeze", self.freeze, ("embeddings", "backbone", "a number of layers"))
        elif self.freeze != "" and self.freeze < 0:
            raise UserError(
                f"expected training.freeze of at least 0 layers, got {self.freeze}; choose a larger number."
            )


@dataclass(frozen=True)
class LengthTrainingOptions(TrainingOptions):
    """Training options of tasks whose batches have examples of similar length."""

    batch_tokens: int = option(
        32768, "maximum number of tokens in a batch, padding included; 0 means no limit", Range(0)
    )


MAX_EVAL_TOKENS = 250_000
"""Enough for all of WikiText's splits; see LOG.md for the error of estimates from that number of tokens."""


@dataclass(frozen=True)
class CorpusData(DataConfig):
    """Documents without labels."""

    join_rows: bool = option(False, "whether the rows of a table or Hub data set are the lines of one document")


@dataclass(frozen=True)
class ExcerptTrainingOptions(TrainingOptions):
    """Training options of tasks that read documents without labels."""

    max_eval_tokens: int = option(
        MAX_EVAL_TOKENS,
        "maximum number of tokens scored of a split during and after training; 0 means all, as in `longspan evaluate`",
        Range(0),
    )


@dataclass(frozen=True)
class CorpusTrainingOptions(ExcerptTrainingOptions):
    """Training options of tasks that read documents as streams, a segment of tokens at a time."""

    segment_length: int = option(256, "tokens that a row reads in one step", Range(1), advice="256 suits most")


@dataclass(frozen=True)
class EvaluationOptions(Options):
    """Keyword arguments of `longspan.evaluate`, and flags of the verb, that only one task has; by default none."""

    @property
    def split(self) -> str | None:
        """Split that these options are for, unless another one is named; None for that of `evaluate`."""
        return None


@dataclass(frozen=True)
class ClassEvaluationOptions(EvaluationOptions):
    """Choice of the least probability of each label."""

    precision: float | None = option(
        None,
        "choose the least probability of each label so that this share of the examples that get it are right, by "
        "default on the validation split",
        SHARE,
    )
    recall: float | None = option(
        None,
        "choose the least probability of each label so that this share of its examples get it, by default on the "
        "validation split",
        SHARE,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.precision is not None and self.recall is not None:
            raise UserError(
                f"expected precision or recall, got both ({self.precision} and {self.recall}); leave one out."
            )

    @property
    def split(self) -> str | None:
        return None if self.precision is None and self.recall is None else "validation"


@dataclass(frozen=True)
class PredictionOptions(Options):
    """Keyword arguments of `longspan.predict`, and flags of the verb, that only one task has; by default none."""


@dataclass(frozen=True)
class SoundOptions(PredictionOptions):
    """Reading of sound for predictions."""

    pcm_rate: int = option(
        0, "samples per second of raw 16-bit little-endian mono PCM on standard input, '-'", Range(0)
    )


@dataclass(frozen=True)
class SearchOptions(EvaluationOptions):
    """Search for the text of each source: beam search, or the one of several drawn texts that agrees best."""

    beams: int | None = option(None, "beams of beam search, 1 for greedy search; as in training unless given", Range(1))
    candidates: int = option(
        0,
        "texts drawn at random instead of beams, of which the one that agrees best with the others is given "
        "(minimum Bayes risk decoding); 0 for beams",
        Range(0),
    )
    length_penalty: float = option(1.0, "exponent of the length by which the score of a beam is divided")
    min_new_tokens: int | None = option(
        None,
        "minimum number of tokens of a text, for texts that end too early; unless given, for a summary the one chosen "
        "in training, for a translation 0",
        Range(0),
    )
    max_new_tokens: int | None = option(
        None,
        "maximum number of tokens of a text; unless given, 256 for a summary, and for a translation twice those "
        "of its source and 20 more",
        Range(1),
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        of_beams = {"beams": self.beams is not None, "length_penalty": self.length_penalty != 1}
        for name in (name for name, given in of_beams.items() if given and self.candidates):
            raise UserError(
                f"expected candidates without {name}, which is for beams, got {name}={getattr(self, name)} and "
                f"candidates={self.candidates}; leave one out."
            )
        if self.max_new_tokens is not None and (self.min_new_tokens or 0) > self.max_new_tokens:
            raise UserError(
                f"min_new_tokens must be at most max_new_tokens={self.max_new_tokens}, got {self.min_new_tokens}; "
                "lower it."
            )


@dataclass(frozen=True)
class GenerationOptions(Options):
    """Options of continuing a text."""

    max_new_tokens: int = option(256, "maximum number of tokens to generate", Range(1))
    temperature: float = option(
        1.0,
        "divisor of the logits; below 1, likely tokens are favoured",
        Range(above=0),
        advice="for the most likely tokens, use greedy",
    )
    top_k: int = option(0, "sample from the N most likely tokens; 0 means all", Range(0))
    top_p: float = option(
        1.0, "sample from the most likely tokens whose probabilities add up to X", Range(above=0, most=1)
    )
    greedy: bool = option(False, "always take the most likely token")
    seed: int = option(0, "random seed for sampling")
    ignore_end: bool = option(False, "continue after the end of the document")


@dataclass(frozen=True)
class ReadingOptions(Options):
    """Reading of the sources of predictions, where it differs from training."""

    text_column: str = option("", "column with the documents, if not the recipe's; with --no-header, its number")
    encoding: str = option("", "encoding of files, if not the recipe's; auto to detect it")
    delimiter: str = option("", "separator of the fields of csv and tsv files, such as ; or tab")
    header: bool | None = option(None, "whether their first row has the names of the columns")


def check_at_least(options: Any, **least: int) -> None:
    """Raise UserError unless each named value is at least the number given; None is left alone."""
    for name, smallest in least.items():
        value = getattr(options, name)
        if value is not None and value < smallest:
            raise UserError(f"{name} must be at least {smallest}, got {value}; choose a larger one.")
