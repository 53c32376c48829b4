"""`rljob doctor`: checks a cluster before a job.

`gather` asks and fills `facts`; the checks that `examine` lists are pure functions of them; `probe` makes
pods that look from the inside. `commands` is the command, `text` what it prints.
"""
