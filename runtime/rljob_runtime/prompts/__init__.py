"""Choose the prompts of each step: fresh ones in order, open groups, or candidates, without too easy or
too hard ones.

Takes what was learned from earlier groups and returns rows and their order. Called by `run`. It does not
depend on any engine.
"""
