"""What turns one stream of a batch into the vectors that the backbone reads: one file per kind, with its settings."""
