"""Baselines of image classification: one per file, found by its name."""
