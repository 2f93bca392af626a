"""Heads: outputs and a loss from the backbone's vectors; one file per head, with its settings."""
