"""A label for each word of documents: parts of speech, chunks, named entities."""
