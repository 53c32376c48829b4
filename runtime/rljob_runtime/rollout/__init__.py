"""Engines: one file each for generation (rollout) and training (update)."""
