"""Reading examples, tokenising documents, and batching tokens."""
