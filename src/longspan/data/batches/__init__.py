"""Batches of examples of similar length."""
