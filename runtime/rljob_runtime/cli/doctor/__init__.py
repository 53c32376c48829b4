"""`rljob doctor`: checks a cluster before a job.

`gather` asks and fills `cluster_facts`; the checks that `examine` lists are pure functions of them; `probe`
makes pods that look from the inside. `doctor_command` is the command, `findings_text` what it prints.
"""
