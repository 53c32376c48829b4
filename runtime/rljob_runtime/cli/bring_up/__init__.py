"""`rljob doctor --bring-up`: does everything that a job needs of a machine's devices, once and in small.

`checks` has the table; `course` runs it, each check in processes of its own (`child`), and `bring_up_command`
tells it and writes the `record`, by which `judgement` lets jobs run on a type of device. What checks do is in
`on_device`, `on_ranks`, `steps`, `generation` and `whole_run`.
"""
