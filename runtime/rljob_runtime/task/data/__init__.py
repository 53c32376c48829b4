"""Prompts: where they come from and which of them a step takes."""
