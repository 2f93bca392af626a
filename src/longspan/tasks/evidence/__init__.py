"""Evidence: which parts of a long document answer a question."""
