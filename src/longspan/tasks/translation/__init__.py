"""Translation: a target text for each source text."""
