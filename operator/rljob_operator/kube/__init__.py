"""The one client of the Kubernetes API, what its answers mean, and events of a job.

In: kinds, names and manifests. Out: objects, or an error that says whether to try again. Called by `watch`
and `reconcile`; nobody else knows which library speaks to the API.
"""
