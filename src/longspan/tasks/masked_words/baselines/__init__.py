"""What people would use instead of a sequence model to fill in words: one file each."""
