"""Graphs: reading them, features of their nodes' places, neighbourhoods, and the processor of graphs."""
