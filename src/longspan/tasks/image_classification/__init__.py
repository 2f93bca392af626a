"""Image classification: one label per image."""
