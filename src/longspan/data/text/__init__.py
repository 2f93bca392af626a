"""Text as tokens: learning tokenizers, applying them, and words."""
