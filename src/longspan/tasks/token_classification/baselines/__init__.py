"""Baselines of token classification: one per file, found by its name."""
