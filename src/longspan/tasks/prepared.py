"""Data that are ready for training: `Prepared`."""

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import Any

from datasets import Dataset

from longspan.data.processor import Processor
from longspan.errors import UserError


@dataclass(frozen=True)
class Prepared:
    """What a task makes of the data before a model is built.

    Attributes:
        splits: "train", and "validation" and "test" where there are any, ready for the trainer. The column `length`
            holds each example's size in tokens.
        processor: What turned examples into streams, saved with the model.
        config: Settings of `LongspanConfig` that depend on the data, such as the size of the vocabulary.
        data: By split, how many examples, tokens and the like there are, and under "skipped" the rows left out, and
            under "encodings" those in other encodings than UTF-8.
        details: What else `TrainingResult.details` should contain, by names that its fields do not have.
    """

    splits: dict[str, Dataset]
    processor: Processor
    config: dict[str, Any]
    data: dict[str, Any]
    details: dict[str, Any] = field(default_factory=dict)


def check_validation(splits: Collection[str]) -> None:
    """Raise UserError unless there is a validation split."""
    if "validation" not in splits:
        raise UserError("expected a validation split, got none; set data.validation or data.validation_fraction.")
