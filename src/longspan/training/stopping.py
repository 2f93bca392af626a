"""Validation scores that select a model and end a training run: `improves` and `EarlyStopping`."""

import math
from collections.abc import Mapping
from typing import Any

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments

from longspan.errors import UserError

LOSS = "eval_loss"
LOSS_AS_TRAINED = "eval_loss_as_trained"


def improves(scores: Mapping[str, Any], best: Mapping[str, Any] | None, metric: str, higher_is_better: bool) -> bool:
    """Whether the validation scores of an epoch are better than the best so far.

    Of equal values of `metric`, which few rows often give, the lower validation loss is better: that of the network
    alone where counts are added to it, as these may have all rows right before the network has learned anything. Among
    scores without a loss it is the later epoch, which has a lower learning rate under most schedules.

    Args:
        scores: Scores by names such as "eval_accuracy".
        best: Those of the best epoch so far; None before the first.
        metric: The score that selects, with "eval_" or without.
        higher_is_better: Whether higher is better there.
    """
    name = f"eval_{metric.removeprefix('eval_')}"
    value, record = scores.get(name), (best or {}).get(name)
    if value is None or math.isnan(value):
        return False
    if record is None or value != record:
        return record is None or (value > record) == higher_is_better
    loss = LOSS_AS_TRAINED if LOSS_AS_TRAINED in scores else LOSS
    return loss not in scores or bool(scores[loss] < (best or {}).get(loss, math.inf))


def best_scores(state: TrainerState) -> dict[str, Any] | None:
    """Logged validation scores of the best model so far; None before the first."""
    step = state.best_global_step
    return next((row for row in state.log_history if row["step"] == step and "eval_runtime" in row), None)


class EarlyStopping(EarlyStoppingCallback):
    """Transformers' early stopping for runs that may be resumed, with `improves`.

    `LongspanTrainer` restores how many evaluations in a row have brought no improvement. A run that is resumed where
    it had stopped early stays stopped, unless it was given more steps.
    """

    @property
    def has_stopped(self) -> bool:
        """Whether the last evaluations, as many as the patience, have brought no improvement."""
        return bool(self.early_stopping_patience_counter >= self.early_stopping_patience)

    def reset_patience(self) -> None:
        """Let a run that had stopped early, and now has more steps, have as many evaluations again."""
        if self.has_stopped:
            self.early_stopping_patience_counter = 0

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        super().on_train_begin(args, state, control, **kwargs)
        control.should_training_stop = self.has_stopped

    def check_metric_value(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, metric_value: float
    ) -> None:
        selection = str(args.metric_for_best_model), bool(args.greater_is_better)
        # Scores are logged before callbacks learn of them.
        better = improves(state.log_history[-1], best_scores(state), *selection)
        self.early_stopping_patience_counter = 0 if better else self.early_stopping_patience_counter + 1


def check_early_stopping(patience: int, arguments: TrainingArguments) -> None:
    """Raise UserError unless `training.early_stopping_patience` goes with the other settings; 0 always does."""
    if not patience:
        return
    if arguments.eval_strategy == "no":
        raise UserError(
            "training.early_stopping_patience needs evaluations during training, but training.eval_strategy is 'no'; "
            "set it to 'epoch' or 'steps', or leave out the patience."
        )
    if not arguments.load_best_model_at_end:
        raise UserError(
            "training.early_stopping_patience keeps the best model, but training.load_best_model_at_end is false; set "
            "it to true, or leave out the patience."
        )
