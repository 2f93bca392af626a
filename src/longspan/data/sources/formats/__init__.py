"""Formats of files, each of which becomes rows of the columns that a task declares (`rows`)."""
