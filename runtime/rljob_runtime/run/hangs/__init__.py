"""The driver's side of a hang: the processes that are asked, those that are missing, and the files.

`switchboard` asks all processes, `verdict` determines which are missing, and `dump` writes the folder.
`request` is the entry point of `rljob stacks`. What each process answers is in `processes.hangs`.
"""
