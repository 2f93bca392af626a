"""A trained model over HTTP: its API and its page (extra `serve`)."""
