"""What a task makes of the data before a model is built."""

from dataclasses import dataclass
from typing import Any

from datasets import Dataset
from transformers import PreTrainedTokenizerBase


@dataclass(frozen=True)
class Prepared:
    """Documents ready for a model.

    Attributes:
        splits: "train", and "validation" and "test" where there are any, with the columns input_ids and length; for
            classification also labels and removed, for language modelling those of `longspan.data.pieces`.
        tokenizer: What made the tokens.
        labels: Class names; the position is the class number. Empty where there are no classes.
        report: Per split, how many documents, tokens and the like there are, and under "skipped" the rows left out and
            why.
    """

    splits: dict[str, Dataset]
    tokenizer: PreTrainedTokenizerBase
    labels: list[str]
    report: dict[str, Any]
