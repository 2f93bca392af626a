"""Baselines of recommendation: one per file, found by its name."""
