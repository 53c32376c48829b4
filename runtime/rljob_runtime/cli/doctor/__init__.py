"""`rljob doctor`: checks a cluster before a job.

`gather` asks and fills `cluster_facts`; `examine` has the table of checks, pure functions of them; `probe`
makes pods that look from the inside, with a table of its own in `probe/judge`. `diagnosis` runs both,
`doctor_command` is the command, `findings_text` what it prints.
"""
