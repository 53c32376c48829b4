"""What the operator hears of the cluster, and when a job is looked at: watches, cache, queue, lease.

In: events of the API server. Out: names of jobs that are due. Knows nothing of what a job needs.
"""
