"""Recordings: decoding, features, augmentation, and the processor that makes streams of them."""
