"""Which processes a run has: where its workers start, how they are called, when they end.

In: a job and machines. Out: workers to call, each call a future of the standard library. `workers` is the
seam; `on_ray` and `local_workers` carry it out. `actors` are the workers themselves, `hangs` what each
answers when it is asked where it stands. Called by `run`. Knows what a worker is made of, never what a step
is.
"""
