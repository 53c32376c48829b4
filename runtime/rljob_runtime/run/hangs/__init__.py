"""The driver's side of a hang: who is asked, who is missing, what is written.

`switchboard` asks all processes, `verdict` says who is missing, `dump` writes the folder; `request` is the
way in for `rljob stacks`. What each process answers is `processes.hangs`.
"""
