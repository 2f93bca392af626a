"""Baselines of graph classifiers."""
