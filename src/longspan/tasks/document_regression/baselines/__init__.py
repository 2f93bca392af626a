"""Baselines of document regression: one per file, found by its name."""
