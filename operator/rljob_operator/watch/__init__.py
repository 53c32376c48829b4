"""Observe the cluster and schedule passes over jobs: watches, cache, queue, lease.

In: events of the API server. Out: names of jobs that are due. It does not know what a job needs.
"""
