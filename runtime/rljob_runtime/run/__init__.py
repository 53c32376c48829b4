"""One run, from a valid job to its end: `launch` prepares, `loop` goes over steps, `stages` calls workers.

In: an RLJob and a folder. Out: events, checkpoints and an exit code. Called by `cli` and by a pod's command.
`hangs` is the driver's side of finding out who is stuck; the status server answers while the run lives.
Calls workers over `processes.workers` and never knows what carries a call out, nor what a worker computes.
"""
