"""Frame labelling: a label for each frame of a recording."""
