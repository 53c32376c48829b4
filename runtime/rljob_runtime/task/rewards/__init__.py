"""Rewards: scorers in child processes, each score with a deadline after which its child is killed."""
