"""Ports of a Ray cluster, pinned so that network policies and people can name them."""

GCS = 6379
CLIENT = 10001
DASHBOARD = 8265
STATUS = 8266
"""Where a driver tells how far it is, and its figures to Prometheus."""
METRICS = 8080
NODE_MANAGER = 8076
OBJECT_MANAGER = 8077
RUNTIME_ENVIRONMENT_AGENT = 8078
FIRST_WORKER = 10002
LAST_WORKER = 19999
DNS = 53
