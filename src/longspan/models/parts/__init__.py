"""Parts of models that heads, embeddings and the backbone share."""
