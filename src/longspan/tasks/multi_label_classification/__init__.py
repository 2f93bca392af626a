"""Multi-label classification: any number of labels per document."""
