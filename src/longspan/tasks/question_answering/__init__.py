"""Question answering: spans of a document that answer a question."""
