"""Feature extractors and image processors for pipelines of transformers."""
