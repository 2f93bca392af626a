"""Options of masked spans."""

from dataclasses import dataclass

from longspan.errors import UserError
from longspan.tasks.base.options import (
    CorpusData,
    EvaluationOptions,
    ExcerptTrainingOptions,
    LengthTrainingOptions,
    option,
)

__all__ = ["EvaluationOptions", "MaskedSpansData", "TrainingOptions"]


@dataclass(frozen=True)
class MaskedSpansData(CorpusData):
    """Documents without labels.

    Attributes:
        max_length: Tokens in a window, before spans are masked. Longer documents are read in several windows, one after
            another, of which the last is shorter.
        vocab_size: Maximum number of tokens to learn, special tokens included, except those that stand for spans.
    """

    max_length: int = 512
    vocab_size: int = 8000


@dataclass(frozen=True)
class TrainingOptions(LengthTrainingOptions, ExcerptTrainingOptions):
    """What is masked; `batch_tokens` counts sources and targets, padding included."""

    masked_share: float = option(0.15, "share of the tokens that are masked")
    span_length: float = option(3.0, "mean number of tokens of a masked span")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.masked_share < 1:
            raise UserError(f"expected training.masked_share between 0 and 1, got {self.masked_share}; 0.15 is usual.")
        if not self.span_length >= 1:
            raise UserError(f"expected training.span_length of at least 1 token, got {self.span_length}; 3 is usual.")
