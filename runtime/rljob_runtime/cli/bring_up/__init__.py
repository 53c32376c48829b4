"""`rljob doctor --bring-up`: run everything that a job needs of a machine's devices, once and at small scale.

`checks` has the table; `course` runs each check in separate processes (`child`). `bring_up_command` prints
the outcomes and writes the `record`, by which `judgement` permits jobs on a type of device. The checks are
implemented in `on_device`, `on_ranks`, `steps`, `generation` and `whole_run`.
"""
