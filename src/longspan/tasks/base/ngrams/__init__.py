"""Linear models over the n-grams of documents: the count-based part of document tasks."""
