"""Baselines of document classification: one per file, found by its name."""
