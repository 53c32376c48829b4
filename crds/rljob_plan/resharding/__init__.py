"""Plan how weights move from the update layout to the rollout layout: which device sends what to which, and
when.

`layouts` computes which box of which tensor each device holds, `stacks` which tensors move alike, and
`routes` which device sends each box. `buckets` orders the moves and bounds their size, `resharding_plan`
combines these, and `figures` counts the bytes. Called by `memory` and `plan`; a runtime executes
`ReshardPlan.steps`.
"""
