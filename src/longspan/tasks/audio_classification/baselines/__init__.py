"""Baselines of audio classification."""
