"""The only client of the Kubernetes API, the interpretation of its answers, and events of a job.

In: kinds, names and manifests. Out: objects, or an error that indicates whether to retry. Called by `watch`
and `reconcile`; no other package knows which library accesses the API.
"""
