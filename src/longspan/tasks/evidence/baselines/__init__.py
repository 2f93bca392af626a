"""Baselines of evidence selection: one per file, found by its name."""
