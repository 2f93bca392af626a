"""What other programs wrote, weights, settings and vocabularies, as run folders. Nothing in a file is executed."""

from longspan.convert.run_folder import convert

__all__ = ["convert"]
