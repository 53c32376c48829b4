"""Which processes a run has: where its workers start, how they are called, when they end."""
