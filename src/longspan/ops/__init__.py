"""Pure tensor functions without parameters, each next to the naive form it is tested against."""
