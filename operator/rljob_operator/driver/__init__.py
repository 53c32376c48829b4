"""What a job's driver says: Ray's API of submitted jobs, and the run's own status endpoint.

In: addresses of a RayCluster's head. Out: what was observed, for `reconcile`. Asks and never decides.
"""
