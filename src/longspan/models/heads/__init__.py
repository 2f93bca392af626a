"""What turns the backbone's vectors into outputs and a loss: one file per head, with its settings."""
