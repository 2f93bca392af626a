"""Training on the Hugging Face `Trainer`: whole documents in batches by length, streams with memory."""
