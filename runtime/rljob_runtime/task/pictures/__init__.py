"""Pictures of prompts: read safely, counted in tokens, made into a model's patches, and drawn.

In: rows of data, a model's directory. Out: pixels, patches, token ids. Called by `data` and its feeder.
"""
