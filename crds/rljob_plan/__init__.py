"""What a job will need and how long its steps will take, by arithmetic: `rljob plan`. No torch, no Ray.

In: a job and its model's shape. Out: memory of each phase, traffic, seconds, the plan of the reshard. `plan`
puts it together; `search` tries layouts; `resharding` plans how weights get from one layout to the other,
which the runtime carries out. Called by the command line, the engines and `weights`; the operator does
without it.
"""
