"""Process pictures of prompts: read them safely, count their tokens, make a model's patches, and draw new
ones.

Takes rows of data and a model's directory; returns pixels, patches and token ids. Called by `data` and
its feeder.
"""
