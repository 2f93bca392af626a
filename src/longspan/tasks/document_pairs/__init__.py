"""Document pairs: one label for two documents."""
