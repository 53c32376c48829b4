"""What a job's driver reports: Ray's API of submitted jobs, and the run's own status endpoint.

In: addresses of a RayCluster's head. Out: what was observed, for `reconcile`. It sends requests and never
decides.
"""
