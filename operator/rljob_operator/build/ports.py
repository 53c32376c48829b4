"""Ports of a Ray cluster, fixed so that network policies and users can name them."""

GCS = 6379
CLIENT = 10001
DASHBOARD = 8265
STATUS = 8266
"""Port at which a driver serves its progress, and its metrics for Prometheus."""
METRICS = 8080
NODE_MANAGER = 8076
OBJECT_MANAGER = 8077
RUNTIME_ENVIRONMENT_AGENT = 8078
FIRST_WORKER = 10002
LAST_WORKER = 19999
DNS = 53
