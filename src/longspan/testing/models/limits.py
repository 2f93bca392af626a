"""What models say they cannot do, by model type and name of a check."""

DOCUMENTED: dict[str, dict[str, str]] = {}
