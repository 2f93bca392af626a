"""Embeddings: one stream of a batch as the vectors that the backbone reads; one file per kind, with its settings."""
