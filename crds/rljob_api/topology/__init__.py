"""Compute which devices, nodes and pods a job has, what each does, and what they are called.

In: a job that passed the rules. Out: the resolved job, whose defaults are filled in, and figures derived from
it. The operator, the planner and the runtime all call it, so they agree.
"""
