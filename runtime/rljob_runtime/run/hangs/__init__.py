"""What every process of a run was doing when a deadline passed, or when somebody asks.

`reporter` is in every process, `switchboard` in the driver asks them all, `verdict` says who is missing,
`dump` writes the folder; `request` is the way in for `rljob stacks`.
"""
