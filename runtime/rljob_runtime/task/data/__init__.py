"""Read the prompts of a job from its data source, and choose which of them a step takes."""
