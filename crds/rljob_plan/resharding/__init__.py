"""Weights from the update layout to the rollout layout, planned by arithmetic: who sends what to whom, when.

`layouts` says which box of which tensor each device holds, `stacks` which tensors move alike, `routes` who
sends each box, `buckets` in which order and how much at once, `plan` puts it together, and `figures` counts
its bytes. Called by `memory` and `plan` of the contract; a runtime executes `plan.Bucket.steps`.
"""
