"""`rljob doctor`: checks a cluster before a job.

`gather` queries the API server and fills `cluster_facts`; `examine` has the table of checks, which are pure
functions of the facts. `probe` creates pods that inspect the cluster from the inside; `probe/judge` has the
table of their checks. `diagnosis` runs both; `doctor_command` defines the command and `findings_text` its
output.
"""
