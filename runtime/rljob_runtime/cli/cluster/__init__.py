"""What the command line shows of jobs on a Kubernetes cluster: `rljob status`, `logs` and `report`.

`cluster_commands` holds the commands; `connect`, `api_calls` and `exec` alone know the Kubernetes client,
which is imported once a command needs the cluster.
"""
