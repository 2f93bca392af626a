"""Columns that a task declares of its data, and parsers of cells."""
