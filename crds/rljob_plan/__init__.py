"""Plan what a job needs and how long its steps take, by arithmetic: `rljob plan`. No torch, no Ray.

In: a job and its model's shape. Out: memory of each phase, traffic, seconds, the plan of the reshard. `plan`
combines the figures; `search` tries layouts; `resharding` plans how weights move from one layout to the
other, which the runtime carries out. Called by the command line, the engines and `weights`, but not by the
operator.
"""
