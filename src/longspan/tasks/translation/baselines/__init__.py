"""Baselines of translation."""
