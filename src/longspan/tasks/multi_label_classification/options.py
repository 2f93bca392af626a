"""Options of multi-label classification."""

from collections import Counter
from dataclasses import dataclass, field

from longspan.data.config import DataConfig
from longspan.errors import UserError
from longspan.tasks.base.options import LengthTrainingOptions, option

__all__ = ["EvaluationOptions", "MultiLabelData", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class MultiLabelData(DataConfig):
    """Documents with any number of labels.

    Attributes:
        label_column: The column with the labels of each document: a list, or text with `label_separator`.
        label_separator: What separates labels in text; "" if such text is a single label.
        label_columns: Instead of `label_column`, one column for each label, called by it, with 0 or 1, true or false;
            empty means 0.
    """

    label_column: str = "labels"
    label_separator: str = ","
    label_columns: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.label_columns:
            return
        if self.label_column != type(self).label_column:
            raise UserError(
                f"expected labels from either data.label_column or data.label_columns, got both ({self.label_column!r} "
                f"and {', '.join(map(repr, self.label_columns))}); set only one."
            )
        for name, times in Counter(self.label_columns).items():
            if not name or times > 1:
                raise UserError(
                    f"data.label_columns must name different columns, got {name!r}"
                    + (f" {times} times; name it once." if name else "; leave it out.")
                )


@dataclass(frozen=True)
class EvaluationOptions:
    """From which probability a label is given.

    Raises:
        UserError: For a value out of range.
    """

    threshold: float | None = option(
        None, "probability from which a label is predicted (default: for each label, the threshold chosen in training)"
    )

    def __post_init__(self) -> None:
        if self.threshold is not None and not 0 <= self.threshold <= 1:
            raise UserError(f"threshold must be from 0 to 1, as it is a probability, but is {self.threshold}.")
