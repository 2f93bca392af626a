"""Images: their settings, their decoding and augmentation, and the sequences that they become."""
