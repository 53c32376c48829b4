"""What to do next for a job, from what was observed and nothing else: no I/O, no clock.

In: a `model.Observed`. Out: the job's status and the actions that bring the cluster there. Called by
`reconcile`.
"""
