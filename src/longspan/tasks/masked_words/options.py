"""Options of masked words."""

from dataclasses import dataclass
from typing import Literal

from longspan.options import option
from longspan.tasks.base.options import SHARE, CorpusData, CorpusTrainingOptions, EvaluationOptions

__all__ = ["EvaluationOptions", "MaskedWordsData", "TrainingOptions"]

MaskedWordsData = CorpusData


@dataclass(frozen=True)
class TrainingOptions(CorpusTrainingOptions):
    """Masking."""

    masking: Literal["tokens", "words", "spans"] = option(
        "words", "units to mask: single tokens, whole words with all their tokens, or spans of whole words"
    )
    masked_share: float = option(0.15, "share of the tokens to predict", SHARE, advice="0.15 is usual")
