"""Baselines of summarisation: one per file, found by its name."""
