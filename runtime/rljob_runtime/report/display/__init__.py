"""The user's displays of a run: live terminal and report."""
