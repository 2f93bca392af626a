"""Converting checkpoints of other programs to run folders. Nothing in a file is executed."""

from longspan.convert.run_folder import convert

__all__ = ["convert"]
