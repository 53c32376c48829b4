"""Manage the processes of a run: where its workers start, how they are called, when they end.

Takes a job and machines and returns workers whose calls are futures of the standard library. `workers` is
the interface; `on_ray` and `local_workers` implement it. `actors` contains the workers themselves.
`hangs` contains what each process reports when a run hangs. Called by `run`. These modules know how a
worker is built, but nothing about steps.
"""
