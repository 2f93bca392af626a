"""Why a model says what it says about one example: how much each position speaks for it, and whether that is true."""
