"""Which prompts a step asks: fresh ones in order, open groups, candidates, none that are too easy or hard.

In: what was learned of earlier groups. Out: rows and their order. Called by `run`. Knows no engine.
"""
