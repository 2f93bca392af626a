"""Stopping a training run early, once its validation scores no longer improve: `EarlyStopping`."""

from typing import Any

from transformers import EarlyStoppingCallback, TrainerControl, TrainerState, TrainingArguments

from longspan.errors import UserError


class EarlyStopping(EarlyStoppingCallback):
    """Transformers' early stopping for runs that may be resumed.

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
