"""Where examples come from, how documents become tokens, and how tokens become batches."""
