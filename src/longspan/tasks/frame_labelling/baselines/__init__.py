"""Baselines of frame labelling."""
