"""Which devices, nodes and pods a job has, what each does, and what they are called.

In: a job that passed the rules. Out: the resolved job, whose defaults are filled in, and arithmetic of it.
Called by the operator, the planner and the runtime, which so agree.
"""
