"""Summarisation: a short text about each long document, perhaps for a question."""
