"""What node classifiers are compared with."""
