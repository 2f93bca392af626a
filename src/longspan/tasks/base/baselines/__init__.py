"""Count-based models and text embeddings that several tasks use as baselines."""
