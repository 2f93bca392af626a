"""Sequence models whose cost grows linearly with length: train, compare, stream and understand them."""
