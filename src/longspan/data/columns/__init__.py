"""What a task declares of its data, and how cells become values."""
