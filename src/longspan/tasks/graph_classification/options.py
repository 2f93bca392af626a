"""Options of graph classification."""

from longspan.tasks.base.options import ClassEvaluationOptions, LengthTrainingOptions

__all__ = ["EvaluationOptions", "TrainingOptions"]

EvaluationOptions = ClassEvaluationOptions
TrainingOptions = LengthTrainingOptions
