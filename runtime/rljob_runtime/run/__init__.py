"""One run, from a valid job to its end: `launch` prepares, `loop` runs the steps, `stages` calls workers.

In: an RLJob and a folder. Out: events, checkpoints and an exit code. Called by `cli` and by a pod's command.
`hangs` is the driver's side of detecting stuck processes; the status server answers while the run lives.
Workers are called through `processes.workers`: nothing here depends on what executes a call, or on what a
worker computes.
"""
