"""Names of what a hang leaves in a run's folder."""

FOLDER = "hangs"
SUMMARY = "summary.txt"
ASKED = "asked"
"""In place of a stage, on request."""
