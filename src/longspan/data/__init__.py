"""Examples: where they come from, what processors make of them, and batches of streams."""
