"""What graph classifiers are compared with."""
