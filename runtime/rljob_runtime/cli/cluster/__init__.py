"""What the command line shows of jobs on a Kubernetes cluster: `rljob status`, `logs` and `report`.

`commands` holds the commands; `connect`, `calls` and `exec` alone know the Kubernetes client, which is
imported once a command needs the cluster.
"""
