"""Tasks that write texts: training, beam search and explanations."""
