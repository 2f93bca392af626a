"""Baselines of question answering: one per file, found by its name."""
