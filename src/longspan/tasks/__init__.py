"""What is learned: one file per task, named by a recipe's `task`.

A task module offers `prepare(data) -> Prepared`, `build_model(settings, prepared)` and `score(logits, labels, names)`.
"""
