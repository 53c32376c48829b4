"""Commands for jobs on a Kubernetes cluster: `rljob status`, `logs` and `report`.

`cluster_commands` defines the commands; only `connect`, `api_calls` and `exec` import the Kubernetes client,
once a command needs the cluster.
"""
