"""Options of masked words."""

from dataclasses import dataclass
from typing import Literal

from longspan.errors import UserError
from longspan.tasks.base.options import CorpusData, CorpusTrainingOptions, EvaluationOptions, option

__all__ = ["EvaluationOptions", "MaskedWordsData", "TrainingOptions"]

MaskedWordsData = CorpusData


@dataclass(frozen=True)
class TrainingOptions(CorpusTrainingOptions):
    """What is masked."""

    masking: Literal["tokens", "words", "spans"] = option(
        "words", "what is masked: single tokens, whole words with all their tokens, or spans of whole words"
    )
    masked_share: float = option(0.15, "share of the tokens that are to be predicted")

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.masked_share < 1:
            raise UserError(f"expected training.masked_share between 0 and 1, got {self.masked_share}; 0.15 is usual.")
