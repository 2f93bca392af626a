"""Options of language modelling."""

from dataclasses import dataclass
from typing import Literal

from longspan.data.config import StreamedData
from longspan.options import Range, option
from longspan.tasks.base import options
from longspan.tasks.base.options import CorpusData, CorpusTrainingOptions

__all__ = ["EvaluationOptions", "LanguageModellingData", "TrainingOptions"]


@dataclass(frozen=True)
class LanguageModellingData(CorpusData, StreamedData):
    """Documents, read again in each pass or stored."""


@dataclass(frozen=True)
class TrainingOptions(CorpusTrainingOptions):
    """Reading of documents in training."""

    carry_states: bool = option(True, "whether a segment continues from the states of the one before")


@dataclass(frozen=True)
class EvaluationOptions(options.EvaluationOptions):
    """Context that a token is predicted from."""

    context: Literal["carried", "sliding"] | None = option(
        None, "carried: states are carried through a document; sliding: each window starts from scratch"
    )
    window: int | None = option(None, "tokens in a sliding window; as in a training segment unless given", Range(1))
    stride: int | None = option(None, "tokens from one window to the next; half a window unless given", Range(1))
    attention_length: int | None = option(
        None, "positions that mixers with a memory remember; as in training unless given", Range(0)
    )
    segment_length: int | None = option(
        None, "tokens read at a time with carried states; as in training unless given", Range(1)
    )
