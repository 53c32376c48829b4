"""Decide what to do next for a job, only from what was observed: no I/O, no clock.

In: a `model.Observation`. Out: the job's status and the actions that bring the cluster there. Called by
`reconcile`.
"""
