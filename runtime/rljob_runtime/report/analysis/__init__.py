"""What a run's steps wait for, what that costs, and which change of the job would help.

`step_figures` reads the events; `blame`, `step_model` and the advice are pure; `rljob analyze` calls `run`.
"""
