"""Options of language modelling."""

from dataclasses import dataclass
from typing import Literal

from longspan.data.config import DataConfig
from longspan.errors import UserError, check_choice
from longspan.tasks import options
from longspan.tasks.options import check_at_least, option


@dataclass(frozen=True)
class LanguageModellingData(DataConfig):
    """Documents.

    Attributes:
        join_rows: Whether the rows of a table or Hub data set are the lines of one document.
    """

    join_rows: bool = False


MAX_EVAL_TOKENS = 250_000
"""Enough for all of WikiText's splits; see LOG.md for how near estimates from so many tokens are."""


@dataclass(frozen=True)
class TrainingOptions(options.TrainingOptions):
    """How documents are read in training."""

    segment_length: int = option(256, "tokens that a row reads in one step")
    max_eval_tokens: int = option(
        MAX_EVAL_TOKENS,
        "maximum number of tokens scored of a split during and after training; 0 means all, as in `longspan evaluate`",
    )
    carry_states: bool = option(True, "whether a segment continues from the states of the one before")

    def __post_init__(self) -> None:
        super().__post_init__()
        check_at_least(self, max_eval_tokens=0)
        if self.segment_length < 1:
            raise UserError(
                "language modelling needs training.segment_length, how many tokens a row reads in one step, got "
                f"{self.segment_length}; 256 suits most."
            )


@dataclass(frozen=True)
class EvaluationOptions:
    """What a token is predicted from.

    Raises:
        UserError: For values out of range.
    """

    context: Literal["carried", "sliding"] | None = option(
        None, "carried: states are carried through a document; sliding: each window starts from scratch"
    )
    window: int | None = option(None, "tokens in a sliding window; as in a training segment unless given")
    stride: int | None = option(None, "tokens from one window to the next; half a window unless given")
    attention_length: int | None = option(
        None, "positions that mixers with a memory remember; as in training unless given"
    )
    segment_length: int | None = option(None, "tokens read at a time with carried states; as in training unless given")

    def __post_init__(self) -> None:
        check_at_least(self, window=1, stride=1, attention_length=0, segment_length=1)
        if self.context is not None:
            check_choice("context", self.context, ("carried", "sliding"))
