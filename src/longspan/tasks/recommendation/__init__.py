"""Which news, or other items, a user will click on, from what the user clicked on before."""
