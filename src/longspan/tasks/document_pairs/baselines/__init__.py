"""Baselines of document pairs: one per file, found by its name."""
