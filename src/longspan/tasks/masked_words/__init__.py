"""Words that are masked in documents, predicted from what is on both sides."""
