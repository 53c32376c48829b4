"""Names of the files that a hang leaves in a run's folder."""

FOLDER = "hangs"
SUMMARY = "summary.txt"
ASKED = "asked"
"""Used in place of a stage if the stacks were requested."""
