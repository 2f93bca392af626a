"""Node classification: a class for each node of a graph."""
