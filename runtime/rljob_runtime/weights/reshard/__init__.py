"""Execute the plans of `rljob_plan.resharding` on tensors: collectives, buffers, and swaps to the host.

Independent of jobs and engines, which pass in the tensors that they train and take those that they generate
with.
"""
