"""Document classification: one label per document."""
