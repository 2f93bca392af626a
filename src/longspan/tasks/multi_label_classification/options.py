"""Options of multi-label classification."""

from collections import Counter
from dataclasses import dataclass

from longspan.data.config import UnlabelledData
from longspan.errors import UserError
from longspan.options import Range, option
from longspan.tasks.base import options
from longspan.tasks.base.options import LengthTrainingOptions

__all__ = ["EvaluationOptions", "MultiLabelData", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions


@dataclass(frozen=True)
class MultiLabelData(UnlabelledData):
    """Documents with any number of labels."""

    label_column: str = option(
        "labels", "column with the labels of each document: a list, or text with `label_separator`"
    )
    label_separator: str = option(",", 'separator of labels in text; "" if such text is a single label')
    label_columns: list[str] = option(
        [],
        "columns of the labels, called by them, with 0 or 1, true or false, instead of `label_column`; empty means 0",
    )

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
class EvaluationOptions(options.EvaluationOptions):
    """Probability from which a label is predicted."""

    threshold: float | None = option(
        None,
        "probability from which a label is predicted (default: for each label, the threshold chosen in training)",
        Range(0, 1),
    )
