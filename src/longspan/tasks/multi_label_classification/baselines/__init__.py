"""Baselines of multi-label classification: one per file, found by its name."""
