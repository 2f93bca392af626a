"""Baselines of masked words: one per file, found by its name."""
