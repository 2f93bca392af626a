"""Language modelling: the next token, from all those before it in its document."""
