"""Options of language modelling."""

from dataclasses import dataclass
from typing import Literal

from longspan.errors import check_choice
from longspan.tasks.base.options import CorpusData, CorpusTrainingOptions, check_at_least, option

__all__ = ["EvaluationOptions", "LanguageModellingData", "TrainingOptions"]


LanguageModellingData = CorpusData


@dataclass(frozen=True)
class TrainingOptions(CorpusTrainingOptions):
    """How documents are read in training."""

    carry_states: bool = option(True, "whether a segment continues from the states of the one before")


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
