"""Baselines of node classifiers."""
