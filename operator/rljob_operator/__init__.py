"""The Kubernetes operator of RLJob."""
