"""How a trained model is scored: one file per task, with the task's name."""
