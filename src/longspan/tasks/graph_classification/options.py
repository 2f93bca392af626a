"""Options of graph classification."""

from longspan.tasks.base.options import EvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "TrainingOptions"]

TrainingOptions = LengthTrainingOptions
