"""Graph classification: a class for each graph."""
