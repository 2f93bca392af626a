"""Pure tensor functions without parameters, each beside the naive form it is tested against."""
