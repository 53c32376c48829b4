"""Score responses in child processes; each score has a deadline, after which its child is killed."""
