"""The one client of the Kubernetes API, what its answers mean, and events of a job."""
