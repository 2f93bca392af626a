"""Audio classification: one label per recording."""
