"""Baselines of language modelling: one per file, found by its name."""
