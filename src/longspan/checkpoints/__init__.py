"""What other programs wrote: their weights, their settings, their vocabularies. Nothing found in a file is executed."""
