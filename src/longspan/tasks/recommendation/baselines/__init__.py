"""What people would use instead of a sequence model for this task: one baseline per file, found by its name."""
