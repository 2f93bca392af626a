"""Ranking of news, or other items, for a user, from what the user clicked on before."""
