"""Document regression: a number per document."""
