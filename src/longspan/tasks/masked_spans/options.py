"""Options of masked spans."""

from dataclasses import dataclass

from longspan.options import Range, option
from longspan.tasks.base.options import (
    SHARE,
    CorpusData,
    EvaluationOptions,
    ExcerptTrainingOptions,
    LengthTrainingOptions,
)

__all__ = ["EvaluationOptions", "MaskedSpansData", "TrainingOptions"]


@dataclass(frozen=True)
class MaskedSpansData(CorpusData):
    """Documents without labels."""

    max_length: int = option(
        512,
        "tokens in a window, before spans are masked. Longer documents are read in several windows, one after "
        "another, of which the last is shorter.",
    )
    vocab_size: int = option(
        8000, "maximum number of tokens to learn, special tokens included, except those that stand for spans"
    )


@dataclass(frozen=True)
class TrainingOptions(LengthTrainingOptions, ExcerptTrainingOptions):
    """Masking; `batch_tokens` counts sources and targets, padding included."""

    masked_share: float = option(0.15, "share of the tokens that are masked", SHARE, advice="0.15 is usual")
    span_length: float = option(3.0, "mean number of tokens of a masked span", Range(1), advice="3 is usual")
